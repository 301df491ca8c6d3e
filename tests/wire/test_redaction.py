"""Secrets are known by the names of fields and options; figures that sound alike stay."""

from __future__ import annotations

import types

import pytest

from capyctl.wire.redaction import REDACTED, is_secret_name, redacted

SECRET = [
    "credential",
    "credentials",
    "hf_secret",
    "secrets",
    "password",
    "db-passwd",
    "token",
    "hf_token",
    "HF_TOKEN",
    "hfToken",
    "apikey",
    "api_key",
    "api-key",
    "apiKey",
    "private_key",
    "admin-key",
    "access_key_id",
    "--api-key",
    "--admin-password",
    "--x-token",
]
PLAIN = [
    "max_total_tokens",
    "tokenizer_workers",
    "tokenizer",
    "--max-num-batched-tokens",
    "key",
    "key_value",
    "cache_key",
    "apis",
    "api_server",
    "monkey_api",
    "",
    "--",
]


@pytest.mark.parametrize("name", SECRET)
def test_these_names_tell_of_a_secret(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", PLAIN)
def test_these_names_do_not(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize("value", ["x", 7, True, ["x"], {"a": "x"}])
def test_a_secret_field_loses_its_value_whatever_it_is(value):
    assert redacted({"a": [{"hf_token": value}]}) == {"a": [{"hf_token": REDACTED}]}


def test_a_secret_that_is_not_set_is_shown_as_that():
    assert redacted({"hf_token": None}) == {"hf_token": None}


def test_an_environment_loses_all_values():
    assert redacted({"env": {"HOME": "/h", "X": 1}}) == {"env": {"HOME": REDACTED, "X": REDACTED}}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--api-key", "s"], ["--api-key", REDACTED]),
        (["--api-key=s"], [f"--api-key={REDACTED}"]),
        (["--api-key= s t"], [f"--api-key= {REDACTED}"]),
        (["--api-key s"], [f"--api-key {REDACTED}"]),
        (["--hf-token", "s", "--port", "1"], ["--hf-token", REDACTED, "--port", "1"]),
        (["--api-key", "--port", "1"], ["--api-key", "--port", "1"]),
        (["--api-key", "-s"], ["--api-key", REDACTED]),
        (["--api-key"], ["--api-key"]),
        (["--x-token", 7, 8], ["--x-token", REDACTED, 8]),
        (["--max-num-batched-tokens", "8"], ["--max-num-batched-tokens", "8"]),
        (["--model=/m", "token"], ["--model=/m", "token"]),
    ],
)
def test_options_lose_their_values(arguments, shown):
    assert redacted({"extra_args": tuple(arguments)}) == {"extra_args": shown}


def test_the_rest_is_a_copy():
    inner = {"n": 1, "s": "token", "none": None, "list": [1.5, True]}
    frozen = types.MappingProxyType({"a": types.MappingProxyType(inner)})

    shown = redacted(frozen)

    assert shown == {"a": inner}
    assert shown["a"] is not inner

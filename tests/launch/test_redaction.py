"""No secret gets through, in whatever pieces it arrives, and ordinary output stays readable."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.launch.redaction import (
    LINE_BYTES_MAX,
    REDACTED,
    LineScrubber,
    Redactor,
    is_secret_name,
)

X = REDACTED


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("api_key=abc123", f"api_key={X}"),
        ("api_key='abc 123', port=1", f"api_key='{X}', port=1"),
        ('{"admin_api_key": "a\\"b", "tp": 1}', f'{{"admin_api_key": "{X}", "tp": 1}}'),
        ("Authorization: Bearer abc.def", f"Authorization: {X}"),
        ("authorization: Basic dXNlcjpw", f"authorization: {X}"),
        ("sent 'Bearer abc.def' to it", f"sent 'Bearer {X}' to it"),
        ("HF_TOKEN=abcdef HOME=/root", f"HF_TOKEN={X} HOME=/root"),
        ("--api-key abcdef --port 8000", f"--api-key {X} --port 8000"),
        ("--api-key=abcdef --port 8000", f"--api-key={X} --port 8000"),
        ("['--admin-password', 'abc', '--tp']", f"['--admin-password', '{X}', '--tp']"),
        ("hf_AbCdEfGhIjKlMnOpQrSt using", f"{X} using"),
        ("https://me:pw@hub.io/a/b?x=1#top", f"https://{X}@hub.io/a/b?{X}#{X}"),
        ("GET http://127.0.0.1:8101/health ok", "GET http://127.0.0.1:8101/health ok"),
        ("dbPassword: abc", f"dbPassword: {X}"),
        ("\x1b[36mapi_key\x1b[0m=\x1b[1mabc\x1b[0m", f"api_key={X}"),
        ("key eyJhbGciOiJI.eyJzdWIiOiIx.c2ln end", f"key {X} end"),
        ("a" * 30 + "1" * 18 + " end", f"{X} end"),
        # Ordinary lines of engines
        ("api_key=None, hf_token=None", "api_key=None, hf_token=None"),
        ("max_total_tokens=4096", "max_total_tokens=4096"),
        ("--max-num-batched-tokens 8192", "--max-num-batched-tokens 8192"),
        ("tokenizer_workers=2 eos_token_id=151645", "tokenizer_workers=2 eos_token_id=151645"),
        ("#new-token: 7, token usage: 0.31", "#new-token: 7, token usage: 0.31"),
        ("-" * 80, "-" * 80),
        ("/a/b/site-packages/vllm/v1/core.py:12", "/a/b/site-packages/vllm/v1/core.py:12"),
        ("hf_overrides={} hf_transfer", "hf_overrides={} hf_transfer"),
    ],
)
def test_lines(line, becomes):
    redactor = Redactor()

    assert redactor.redact(line) == becomes
    assert redactor.redact(becomes) == becomes


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("api_key", True),
        ("HF_TOKEN", True),
        ("--admin-api-key", True),
        ("client_secret", True),
        ("key_api", True),
        ("accessKey", True),
        ("cache_key", False),
        ("max_total_tokens", False),
        ("tokenizer_workers", False),
        ("eos_token_ids", False),
        ("keys", False),
    ],
)
def test_names(name, secret):
    assert is_secret_name(name) is secret


@pytest.mark.parametrize(
    "form",
    ["se same/9", "se%20same%2F9", "x=se same/9;", "\x1b[1mse same\x1b[0m/9", "se\x00 same/9"],
)
def test_a_known_secret_is_found_in_its_usual_forms(form):
    assert "same" not in Redactor(["se same/9"]).redact(form)


def test_each_long_line_of_a_secret_is_one():
    key = "-----BEGIN KEY-----\nMIIEvQIBADAN\n-----END KEY-----"
    shown = Redactor([key]).redact(f"read {key!r}\nMIIEvQIBADAN\n")
    assert "MIIEv" not in shown


def test_a_very_short_secret_does_not_eat_other_words():
    assert Redactor(["ab"]).redact("about ab, cab") == f"about {X}, cab"


secrets = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), min_size=4, max_size=40
)
noise = st.text(st.sampled_from("ab =:\"'\r\nπ-"), max_size=60)


@given(
    secret=secrets.filter(str.strip),
    before=noise,
    after=noise,
    cuts=st.lists(st.integers(0, 300), max_size=6),
)
def test_a_secret_in_pieces_is_never_shown(secret, before, after, cuts):
    data = f"{before}{secret}{after}".encode()
    scrubber = LineScrubber(Redactor([secret]))

    out = b""
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, end in itertools.pairwise(places):
        out += scrubber.feed(data[start:end])
    out += scrubber.close()

    assert secret not in out.decode().replace(REDACTED, "\0")
    assert not out or out.endswith(b"\n")


pieces_of_lines = st.sampled_from(
    [
        *("api_key", "token", "=", ":", " ", "'", '"', "Bearer ", "Authorization", "http://"),
        *("u:p@h", "/", "?", "#", REDACTED, "hf_Abc1234567", "\n", ",", "--", "\\", "1" * 50 + "a"),
        *("None", "\x1b[", "m", "abc"),
    ]
)


@given(line=st.lists(pieces_of_lines, max_size=14).map("".join))
def test_twice_is_the_same_as_once(line):
    redactor = Redactor(["abc"])
    once = redactor.redact(line)
    assert redactor.redact(once) == once


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=6))
def test_pieces_make_no_difference(data, cuts):
    whole = LineScrubber(Redactor(["abc"]))
    pieces = LineScrubber(Redactor(["abc"]))
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})

    out = [pieces.feed(data[a:b]) for a, b in itertools.pairwise(places)]

    assert b"".join(out) + pieces.close() == whole.feed(data) + whole.close()


@pytest.mark.parametrize("lead", [LINE_BYTES_MAX - 5, LINE_BYTES_MAX + 4090, LINE_BYTES_MAX + 9000])
@pytest.mark.parametrize("chunk", [1000, 1 << 20])
def test_a_secret_where_a_long_line_is_cut_is_not_shown(lead, chunk):
    secret = "sesame!opens!it"
    data = b"." * lead + secret.encode() + b"." * LINE_BYTES_MAX + b"\nnext\n"
    scrubber = LineScrubber(Redactor([secret]))

    out = b"".join(scrubber.feed(data[at : at + chunk]) for at in range(0, len(data), chunk))

    first, second, rest = out.split(b"\n")
    assert (second, rest) == (b"next", b"")
    assert b"more bytes]" in first
    assert len(first) < LINE_BYTES_MAX + 100
    assert b"sesa" not in first


def test_a_line_that_shrinks_does_not_show_half_a_secret_at_its_cut():
    secret = "sesame!opens!this!door!of!the!mountain!" + "!"
    out = LineScrubber(Redactor([secret])).feed(b"." + secret.encode() * 3000 + b"\n")

    assert b"<redacted>" in out
    assert b"sesa" not in out


def test_pieces_around_a_gap_are_dropped():
    scrubber = LineScrubber(Redactor())
    assert scrubber.feed(b"one\nses") == b"one\n"
    assert scrubber.gap() == 3
    assert scrubber.feed(b"ame\ntwo\n") == b"two\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        *("a_" * 32000, "token_" * 10000, "=" * 65000, "key=" * 16000, "http://" * 9000),
        *("\x1b[" * 30000, "bearer " * 9000, "'" * 65000, "\\" * 65000, "eyJ" * 20000),
        *("<redacted>" * 6500, "1a" * 32000, "api_key='" * 7000, "api_key \t" * 7000),
    ],
    ids=lambda line: repr(line[:10]),
)
def test_hostile_lines_take_no_time(line):
    began = time.process_time()
    Redactor(["sesame"]).redact(line)
    assert time.process_time() - began < 1

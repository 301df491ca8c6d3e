"""Who is let in: loopback hosts, then one bearer token, before anything else is looked at."""

from __future__ import annotations

import pytest

from tests.contract.rows import CHANGES, READS
from tests.contract.speaking import PREFIX, canonical

UNAUTHENTICATED = canonical(
    {
        "api_version": "1",
        "error": {
            "code": "unauthenticated",
            "details": {},
            "message": "Management authentication required",
            "operation_id": None,
            "retryable": False,
        },
    }
)
REFUSED = {
    "no-header": None,
    "wrong-token": "Bearer " + "x" * 43,
    "short-token": "Bearer x",
    "basic": "Basic dXNlcjpwYXNz",
    "lower-case-scheme": "bearer {token}",
    "upper-case-scheme": "BEARER {token}",
    "two-spaces": "Bearer  {token}",
    "tab": "Bearer\t{token}",
    "no-scheme": "{token}",
    "scheme-alone": "Bearer",
    "joined-twice": "Bearer {token}, Bearer {token}",
    "token-twice": "Bearer {token} {token}",
    "one-character-less": "Bearer {shorter}",
    "one-character-more": "Bearer {token}a",
    "a-parameter": 'Bearer token="{token}"',
    "api-key": "Bearer {api_key}",
}
LOOPBACK = [
    "localhost",
    "LOCALHOST",
    "localhost:7443",
    "localhost:1",
    "127.0.0.1",
    "127.0.0.1:7443",
    "127.0.0.1:65535",
    "127.1.2.3:80",
    "[::1]",
    "[::1]:7443",
]
FOREIGN = [
    "example.com",
    "example.com:7443",
    "localhost.example.com",
    "notlocalhost",
    "127.0.0.1.example.com",
    "10.0.0.1",
    "0.0.0.0",
    "192.168.1.1:7443",
    "128.0.0.1",
    "[::]",
    "[::2]:7443",
    "[::ffff:10.0.0.1]",
    "::1",
    "localhost:port",
    "user@localhost",
    "http://localhost",
    "",
]


def bearer(text, target):
    shorter = target.token[:-1]
    return text.format(token=target.token, shorter=shorter, api_key=target.api_key)


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_anything_but_one_exact_bearer_is_401(target, value):
    sent = None if value is None else bearer(value, target)

    answer = target.ask("GET", "/snapshot", bearer=sent)

    assert answer.status == 401
    assert answer.body == UNAUTHENTICATED


def test_two_authorization_headers_are_401(target):
    again = [("Authorization", f"Bearer {target.token}")]

    assert target.ask("GET", "/snapshot", headers=again).body == UNAUTHENTICATED


def test_the_header_name_has_no_case(target):
    sent = [("AUTHORIZATION", f"Bearer {target.token}")]

    assert target.ask("GET", "/snapshot", headers=sent, bearer=None).status == 200


@pytest.mark.parametrize("path", READS.values(), ids=READS)
def test_every_read_needs_the_token(target, path):
    assert target.ask("GET", path, bearer=None).code == "unauthenticated"


@pytest.mark.parametrize(("method", "path", "body"), CHANGES.values(), ids=CHANGES)
def test_every_change_needs_the_token(target, method, path, body):
    assert target.change(method, path, body, bearer=None).code == "unauthenticated"


@pytest.mark.parametrize(
    "path", ["/", "/v1/models", "/management", PREFIX, f"{PREFIX}/nothing", "/management/v2/x"]
)
def test_an_unknown_path_without_a_token_is_401_too(target, path):
    assert target.ask_bare("GET", path, bearer=None).code == "unauthenticated"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_wrong_method_without_a_token_is_401_too(target, method):
    assert target.ask(method, "/snapshot", bearer=None).code == "unauthenticated"


@pytest.mark.parametrize("host", LOOPBACK)
def test_a_loopback_host_is_let_in(target, host):
    assert target.ask("GET", "/snapshot", host=host).status == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_a_foreign_host_is_403(target, host):
    answer = target.ask("GET", "/snapshot", host=host)

    assert (answer.status, answer.code) == (403, "forbidden")


def test_a_foreign_host_comes_before_the_token(target):
    assert target.ask("GET", "/snapshot", host="example.com", bearer=None).code == "forbidden"


@pytest.mark.parametrize(("method", "path", "body"), CHANGES.values(), ids=CHANGES)
def test_a_change_for_a_foreign_host_is_403(target, method, path, body):
    assert target.change(method, path, body, host="example.com").code == "forbidden"


def test_an_unknown_path_for_a_foreign_host_is_403(target):
    assert target.ask("GET", "/nothing", host="example.com").code == "forbidden"


def test_the_page_s_token_is_no_key_of_the_inference_endpoint(target, implementation):
    from tests.contract.speaking import Connection

    request = (
        "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {target.token}\r\n\r\n"
    )
    with Connection(*target.inference) as connection:
        connection.send(request.encode())

        assert connection.answer().status == 401

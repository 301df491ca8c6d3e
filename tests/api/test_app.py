"""Every route: who may ask, which errors, and what is on every answer."""

from __future__ import annotations

import pytest

from capyctl.api.app import make_app
from capyctl.domain.errors import MANAGEMENT_ERRORS, Refused
from tests.api.clients import BEARER, HOST, KEY, PREFIX, TOKEN, running
from tests.api.fake_management import FakeClock, FakeManagement

UNAUTHENTICATED = (
    b'{"api_version":"1","error":{"code":"unauthenticated","details":{},'
    b'"message":"Management authentication required","operation_id":null,"retryable":false}}'
)
ULID = "01M5E0MPXN61STKHGZ6BTEFVM3"
PATHS = ["/snapshot", "/events", "/deployments", "/nowhere", f"/deployments/{ULID}/actions"]


def bearer(value):
    return [(b"authorization", value)]


BAD_CREDENTIALS = {
    "none": [],
    "the inference key": bearer(f"Bearer {KEY}".encode()),
    "basic": bearer(b"Basic " + TOKEN.encode()),
    "two spaces": bearer(b"Bearer  " + TOKEN.encode()),
    "another case": bearer(b"bearer " + TOKEN.encode()),
    "joined twice": bearer(f"Bearer {TOKEN}, Bearer {TOKEN}".encode()),
    "sent twice": [BEARER, BEARER],
    "cut short": bearer(f"Bearer {TOKEN[:-1]}".encode()),
    "one more": bearer(f"Bearer {TOKEN}x".encode()),
    "in the wrong header": [(b"x-api-key", TOKEN.encode())],
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("headers", BAD_CREDENTIALS.values(), ids=BAD_CREDENTIALS)
async def test_without_the_token_every_path_is_401(path, headers, autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        for method in ("GET", "POST"):
            answer = await client.ask(method, PREFIX + path, headers=[HOST, *headers], bare=True)

            assert answer.status == 401
            assert answer.body == UNAUTHENTICATED
    assert not fake.calls


@pytest.mark.parametrize(
    ("host", "is_let_in"),
    [
        (b"localhost", True),
        (b"LOCALHOST:1", True),
        (b"127.0.0.1:7443", True),
        (b"127.9.8.7", True),
        (b"[::1]:7443", True),
        (b"[0:0:0:0:0:0:0:1]", True),
        (b"::1", False),
        (b"[127.0.0.1]", False),
        (b"[::ffff:127.0.0.1]", False),
        (b"[::2]", False),
        (b"128.0.0.1", False),
        (b"127.0.0.1.example.com", False),
        (b"localhost.example.com:7443", False),
        (b"localhost:7443:1", False),
        (b"user@localhost", False),
        (b"", False),
    ],
)
async def test_only_loopback_hosts_are_answered(host, is_let_in, autojump_clock):
    async with running() as client:
        known = await client.ask(
            "GET", f"{PREFIX}/snapshot", headers=[(b"host", host), BEARER], bare=True
        )
        unknown = await client.ask("GET", "/", headers=[(b"host", host)], bare=True)

    assert (known.status, unknown.status) == ((200, 401) if is_let_in else (403, 403))
    assert is_let_in or known.code == unknown.code == "forbidden"


@pytest.mark.parametrize("hosts", [[], [HOST, HOST]])
async def test_exactly_one_host_is_needed(hosts, autojump_clock):
    async with running() as client:
        answer = await client.ask("GET", f"{PREFIX}/snapshot", headers=[*hosts, BEARER], bare=True)

    assert answer.code == "forbidden"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/snapshot", b"GET"),
        ("HEAD", "/snapshot", b"GET"),
        ("HEAD", "/events", b"GET"),
        ("HEAD", "/model-sources", b"GET"),
        ("HEAD", "/metrics/load", b"GET"),
        ("OPTIONS", "/snapshot", b"GET"),
        ("OPTIONS", "/deployments", b"POST"),
        ("GET", "/deployments", b"POST"),
        ("DELETE", f"/deployments/{ULID}", b"PUT"),
        ("GET", f"/deployments/{ULID}/actions", b"POST"),
        ("PATCH", f"/deployments/{ULID}/instances/0/actions", b"POST"),
    ],
)
async def test_a_known_path_with_another_method_is_405(method, path, allow, autojump_clock):
    async with running() as client:
        answer = await client.ask(method, path)

    assert answer.status == 405
    assert answer.code == "method_not_allowed"
    assert answer.values(b"allow") == [allow]
    assert answer.json()["error"]["retryable"] is False


@pytest.mark.parametrize(
    "path",
    [
        "/management/v1",
        "/management/v1/",
        "/management/v1/snapshot/",
        "/management/v1//snapshot",
        "//management/v1/snapshot",
        "/management/v1/%73napshot",
        "/management/v1/snapshot;x",
        "/management/v2/snapshot",
        "/v1/models",
        "/static/x",
        "*",
        "http://localhost/management/v1/snapshot",
        f"/management/v1/deployments/{ULID}/actions/",
        "/management/v1/deployments//actions",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS"])
async def test_an_unknown_path_is_404(method, path, autojump_clock):
    async with running() as client:
        answer = await client.ask(method, path, headers=[HOST, BEARER], bare=True)

    assert answer.status == 404
    assert answer.code == "not_found"
    assert answer.json()["error"]["retryable"] is False


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/snapshot"),
        ("GET", "/model-sources"),
        ("GET", "/metrics/load"),
        ("GET", "/metrics/latency"),
        ("GET", "/nowhere"),
        ("POST", "/snapshot"),
        ("POST", "/deployments"),
        ("PUT", "/deployments/x"),
        ("GET", "/deployments/x/effective-config"),
        ("GET", "/deployments/x/engine-log"),
        ("GET", "/events?"),
    ],
)
async def test_every_answer_has_the_two_headers_and_is_json(method, path, autojump_clock):
    async with running() as client:
        answer = await client.ask(method, path)

    assert answer.values(b"cache-control") == [b"no-store"]
    assert answer.values(b"x-content-type-options") == [b"nosniff"]
    assert answer.values(b"content-type") == [b"application/json"]
    assert isinstance(answer.json(), dict)


@pytest.mark.parametrize("kind", MANAGEMENT_ERRORS.values(), ids=lambda kind: kind.code)
async def test_each_refusal_has_its_status_and_envelope(kind, autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        fake.refusal = Refused(kind.code, "What happened.", {"path": "a.b"})
        answer = await client.create()

    assert answer.status == kind.http_status
    assert answer.body == (
        b'{"api_version":"1","error":{"code":"%s","details":{"path":"a.b"},'
        b'"message":"What happened.","operation_id":null,"retryable":%s}}'
        % (kind.code.encode(), b"true" if kind.retryable else b"false")
    )
    assert not answer.values(b"retry-after")


async def test_a_read_that_fails_is_500_without_its_reason(autojump_clock, caplog):
    fake = FakeManagement()
    fake.broken_reads = True
    async with running(fake) as client:
        answer = await client.ask("GET", "/snapshot")

    assert answer.code == "internal"
    assert b"disk" not in answer.body
    assert "the disk is gone" in caplog.text


async def test_a_handler_that_fails_is_500_in_the_envelope(autojump_clock, caplog):
    async with running() as client:
        client.app.view_functions["GET /snapshot"] = fail
        answer = await client.ask("GET", "/snapshot")

    assert answer.code == "internal"
    assert answer.values(b"cache-control") == [b"no-store"]
    assert "not expected" in caplog.text


async def fail():
    raise RuntimeError("not expected")


async def test_an_application_that_breaks_is_still_answered(autojump_clock, caplog):
    async with running() as client:
        client.app.after_request(break_answer)
        answer = await client.ask("GET", "/snapshot")

    assert answer.code == "internal"
    assert answer.values(b"x-content-type-options") == [b"nosniff"]


async def break_answer(response):
    raise RuntimeError("not expected")


@pytest.mark.parametrize("token", ["short", "x" * 257, "x" * 31, "ä" * 40, "x y" * 20, ""])
def test_a_malformed_token_builds_no_api(token):
    with pytest.raises(ValueError, match="admin token"):
        make_app(FakeManagement(), token=token, clock=FakeClock())


def test_the_inference_key_cannot_be_the_token():
    with pytest.raises(ValueError, match="different"):
        make_app(FakeManagement(), token=TOKEN, inference_key=TOKEN, clock=FakeClock())


def test_the_token_is_not_kept_in_the_application():
    app = make_app(FakeManagement(), token=TOKEN, clock=FakeClock())

    assert TOKEN not in repr(vars(app)) + repr(vars(vars(app)["_token"]))

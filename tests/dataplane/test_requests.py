"""Keys, paths, methods, bounds and malformed requests: decided here, before any engine."""

import json

import pytest

from capyctl.dataplane.plane import Limits
from tests.dataplane.engines import KEY, answers, get, json_answer, post, world

BODY = b'{"model":"m"}'
OK = answers(json_answer(b"{}"))


def assert_error(got, status: int, code: str) -> dict:
    body = json.loads(got.body)
    assert (got.status, body["code"]) == (status, code)
    assert got.header("content-type") == "application/json"
    assert len(got.header("x-capyctl-request-id")) == 26
    assert body["error"]["code"] == code
    assert body["error"]["message"] == body["message"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert set(body) <= {"code", "message", "retryable", "error"}
    assert body.get("retryable", True) is True
    return body


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("Authorization: Bearer wrong",),
        ("Authorization: Basic sk-test-key",),
        ("Authorization: sk-test-key",),
        ("x-api-key: wrong",),
        ("Authorization: Bearer sk-test-key", "x-api-key: other"),
        ("Authorization: Bearer other", "x-api-key: sk-test-key"),
        ("Authorization: Bearer sk-test-key", "Authorization: Bearer sk-test-key"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/nowhere"])
async def test_without_the_right_key_everything_is_401(lines, path):
    async with world(OK) as plane:
        got = await plane.ask(post(BODY, path, key=None, headers=lines))
    assert_error(got, 401, "unauthorized")
    assert plane.engines[0].requests == []


@pytest.mark.parametrize(
    "lines",
    [
        ("authorization: bearer sk-test-key",),
        ("X-Api-Key: sk-test-key",),
        ("Authorization: BEARER sk-test-key", "x-api-key: sk-test-key"),
    ],
)
async def test_forms_of_the_right_key(lines):
    async with world(OK) as plane:
        got = await plane.ask(post(BODY, key=None, headers=lines))
    assert got.status == 200
    assert KEY not in plane.engines[0].requests[0].head


async def test_no_key_where_it_is_turned_off():
    async with world(OK, api_key=None) as plane:
        got = await plane.ask(post(BODY, key=None))
    assert got.status == 200


async def test_health_needs_no_key():
    async with world() as plane:
        assert (await plane.ask(get("/health", key=None))).status == 200
        assert (
            await plane.ask(get("/health", method="HEAD", key=None), head_only=True)
        ).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("HEAD", "/v1/chat/completions", 405, "POST"),
        ("OPTIONS", "/v1/embeddings", 405, "POST"),
        ("POST", "/v1/models", 405, "GET, HEAD"),
        ("DELETE", "/health", 405, "GET, HEAD"),
        ("GET", "/v1/models/", 404, None),
        ("GET", "/v1/models/m", 404, None),
        ("GET", "/metrics", 404, None),
        ("POST", "/sleep", 404, None),
        ("GET", "/", 404, None),
        ("HEAD", "/", 404, None),
    ],
)
async def test_other_methods_and_paths(method, path, status, allow):
    async with world(OK) as plane:
        client = await plane.client()
        await client.send(get(path, method=method, headers=("Content-Length: 0",)))
        got = await client.answer(head_only=method == "HEAD")
        assert (got.status, got.header("allow")) == (status, allow)
        if method != "HEAD":
            assert_error(got, status, "not_found" if status == 404 else "method_not_allowed")
        await client.send(get("/v1/models"))
        assert (await client.answer()).status == 200
        await client.close()
    assert plane.engines[0].requests == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b'"m"', None),
        (b"{", None),
        (b"{}", "model"),
        (b'{"model":""}', "model"),
        (b'{"model":null}', "model"),
        (b'{"model":7}', "model"),
        (b'{"model":["m"]}', "model"),
        (b'{"model":"m"} x', None),
        (b'{"model":"m","a":NaN}', None),
        (b'\xef\xbb\xbf{"model":"m"}', None),
        (b'{"model":"\xff"}', None),
        (b'{"model":"m","a":' + b"[" * 5000 + b"]" * 5000 + b"}", None),
        (b'{"model":"m","cache_salt":""}', "cache_salt"),
        (b'{"model":"m","cache_salt":1}', "cache_salt"),
        (b'{"model":"m","cache_salt":"' + b"x" * 1025 + b'"}', "cache_salt"),
        (b"\x1f\x8b\x08", None),
    ],
)
async def test_bodies_that_cannot_be_routed(body, param):
    async with world(OK) as plane:
        got = await plane.ask(post(body))
    told = assert_error(got, 400, "invalid_request")
    assert told["error"]["param"] == param
    if param:
        assert param in told["message"]
    assert plane.engines[0].requests == []


async def test_unknown_models_routes_and_salts():
    async with world(OK) as plane:
        plane.route("m", engine_paths=frozenset({"/v1/embeddings"}), takes_cache_salt=False)
        unknown = await plane.ask(post(b'{"model":"M"}'))
        lacking = await plane.ask(post(BODY))
        salted = await plane.ask(post(b'{"model":"m","cache_salt":"x"}', "/v1/embeddings"))
        fine = await plane.ask(post(BODY, "/v1/embeddings"))
    assert_error(unknown, 404, "unknown_model")
    assert_error(lacking, 404, "unsupported_route")
    assert_error(salted, 400, "cache_salt_unsupported")
    assert fine.status == 200
    assert plane.nudges == []


async def test_an_encoded_body_is_415():
    async with world(OK) as plane:
        got = await plane.ask(post(BODY, headers=("Content-Encoding: gzip",)))
    assert_error(got, 415, "unsupported_media_type")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_bound_is_413_without_reading_it_all(chunked):
    limits = Limits(body_bytes_max=1000, linger_s=0.05)
    async with world(OK, limits=limits) as plane:
        client = await plane.client()
        if chunked:
            await client.send(
                post(b"3e9\r\n" + b"x" * 1001, headers=("Transfer-Encoding: chunked",))
            )
        else:
            await client.send(post(b"x" * 10, length=200_000_000))
        got = await client.answer()
        assert_error(got, 413, "request_too_large")
        assert "1000" in json.loads(got.body)["message"]
        assert got.header("connection") == "close"
        assert await client.ended()
        await client.close()
        exact = b'{"model":"m"' + b" " * 987 + b"}"
        assert (await plane.ask(post(exact))).status == 200


async def test_expect_is_answered_before_the_body():
    async with world(OK) as plane:
        client = await plane.client()
        await client.send(post(b"", headers=("Expect: 100-continue",), length=len(BODY)))
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(BODY)
        assert (await client.answer()).status == 200
        await client.close()


async def test_expect_with_a_wrong_key_is_refused_before_the_body():
    async with world(OK) as plane:
        client = await plane.client()
        await client.send(post(b"", key=b"wrong", headers=("Expect: 100-continue",), length=5000))
        got = await client.answer()
        await client.close()
    assert_error(got, 401, "unauthorized")
    assert got.header("connection") == "close"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"GET /v1/models\r\n\r\n", 400),
        (b"GET / HTTP/1.1\n\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"NOPE / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhOST: a\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nX-Host: a\r\n\r\n", 400),
        (b"GET http://a/health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: http://a\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
        (post(b"abc").replace(b"Host: test\r\n", b""), 400),
        (post(b"abc", headers=("Transfer-Encoding: chunked", "Content-Length: 3")), 400),
        (post(b"abc", headers=("Transfer-Encoding: gzip, chunked",)), 400),
        (post(b"abc", headers=("Content-Length: 3",)), 400),
        (post(b"zz\r\n", headers=("Transfer-Encoding: chunked",)), 400),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431),
    ],
)
async def test_what_is_no_request_is_answered_and_the_connection_ends(raw, status):
    async with world(OK, limits=Limits(linger_s=0.05)) as plane:
        client = await plane.client()
        await client.send(raw)
        got = await client.answer()
        assert_error(got, status, "invalid_request")
        assert await client.ended()
        await client.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /health HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: 10.0.0.5:8443\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHOST:[fe80::1%25eth0]:8443\r\n\r\n",
        b"GET http://a/health HTTP/1.1\r\nHost: b_c\r\n\r\n",
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET /health HTTP/1.0\r\nHost: a\r\n\r\n",
    ],
)
async def test_a_request_that_names_its_host_or_need_not_is_answered(raw):
    async with world(OK) as plane:
        client = await plane.client()
        await client.send(raw)
        got = await client.answer()
        await client.close()

    assert got.status == 200


@pytest.mark.slow
async def test_heads_bodies_and_idle_connections_have_their_time():
    limits = Limits(
        head_timeout_s=0.1, body_pause_max_s=0.1, connection_idle_max_s=0.1, linger_s=0.1
    )
    async with world(OK, limits=limits) as plane:
        slow_head, slow_body, idle = [await plane.client() for _ in range(3)]
        await slow_head.send(b"POST /v1/chat")
        await slow_body.send(post(b"{", length=100))
        assert_error(await slow_head.answer(), 408, "invalid_request")
        assert_error(await slow_body.answer(), 408, "invalid_request")
        assert await idle.ended()


async def test_connection_close_and_upgrades():
    async with world(OK) as plane:
        client = await plane.client()
        h2c = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA")
        await client.send(post(BODY, headers=h2c))
        assert (await client.answer()).status == 200
        await client.send(post(BODY, headers=("Connection: close",)))
        got = await client.answer()
        assert got.header("connection") == "close"
        assert await client.ended()
        await client.close()


async def test_blank_lines_between_requests_are_passed_over():
    async with world(OK) as plane:
        client = await plane.client()
        for blank in (b"\r\n", b"\r\n\r\n", b"\r\n" * 5, b"\n"):
            await client.send(blank + post(BODY))
            assert (await client.answer()).status == 200
        await client.close()


async def test_too_many_connections_get_a_clear_answer():
    async with world(OK, limits=Limits(connections_max=2)) as plane:
        held = [await plane.client() for _ in range(2)]
        for client in held:
            await client.send(post(BODY))
            assert (await client.answer()).status == 200
        refused = await plane.ask(post(BODY))
        assert_error(refused, 503, "unavailable")
        await held[0].close()
        while (got := await plane.ask(post(BODY))).status == 503:
            pass
        assert got.status == 200


async def test_request_head_in_single_bytes():
    async with world(OK) as plane:
        client = await plane.client()
        for byte in post(BODY):
            await client.send(bytes((byte,)))
        assert (await client.answer()).status == 200
        await client.close()


async def test_absolute_targets_are_understood():
    async with world(OK) as plane:
        got = await plane.ask(get("http://somewhere/v1/models"))
    assert got.status == 200

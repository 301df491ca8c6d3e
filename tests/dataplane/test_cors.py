"""Pages of other origins: nothing by default, and never with credentials."""

import json

import pytest

from capyctl.dataplane.cors import ANY, Cors
from tests.dataplane.engines import (
    DONE_EVENT,
    LAST,
    STREAM_HEAD,
    answers,
    chunk,
    json_answer,
    post,
    world,
)
from tests.dataplane.engines import get as get_request

HERE = "https://chat.example.org"
ALLOWED = Cors(origins=frozenset({HERE}))
OK = answers(json_answer(b"{}"))
BODY = b'{"model":"m"}'
ASKS = (
    f"Origin: {HERE}",
    "Access-Control-Request-Method: POST",
    "Access-Control-Request-Headers: authorization,content-type,x-stainless-os",
)


def preflight(*headers: str, path: str = "/v1/chat/completions") -> bytes:
    return get_request(path, method="OPTIONS", key=None, headers=headers)


def cors_headers(got) -> dict[str, str]:
    names = {name.lower(): value for name, value in got.headers}
    return {k: v for k, v in names.items() if k.startswith("access-control-") or k == "vary"}


async def test_it_is_off_by_default():
    async with world(OK) as plane:
        asked = await plane.ask(preflight(*ASKS))
        served = await plane.ask(post(BODY, headers=(f"Origin: {HERE}",)))
    assert asked.status == 401
    assert served.status == 200
    assert cors_headers(asked) == cors_headers(served) == {}


async def test_a_preflight_is_answered_without_a_key_and_without_an_engine():
    async with world(cors=ALLOWED) as plane:
        got = await plane.ask(preflight(*ASKS))
    assert (got.status, got.body) == (200, b"")
    told = cors_headers(got)
    assert told.pop("access-control-expose-headers").startswith("retry-after")
    assert told == {
        "access-control-allow-origin": HERE,
        "access-control-allow-methods": "GET, HEAD, POST",
        "access-control-allow-headers": "authorization,content-type,x-stainless-os",
        "access-control-max-age": "600",
        "vary": "Origin",
    }


async def test_every_answer_can_be_read_by_a_page_that_may():
    stream = answers(STREAM_HEAD + chunk(DONE_EVENT) + LAST)
    async with world(stream, cors=ALLOWED) as plane:
        origin = (f"Origin: {HERE}",)
        got = [
            await plane.ask(post(b'{"model":"m","stream":true}', headers=origin)),
            await plane.ask(post(BODY, headers=origin, key=b"wrong")),
            await plane.ask(post(b'{"model":"x"}', headers=origin)),
            await plane.ask(get_request("/v1/models", headers=origin)),
        ]
    assert [one.status for one in got] == [200, 401, 404, 200]
    for one in got:
        assert one.header("access-control-allow-origin") == HERE
        assert "x-capyctl-request-id" in one.header("access-control-expose-headers")
        assert one.header("vary") == "Origin"


@pytest.mark.parametrize(
    "headers",
    [
        ("Origin: https://evil.example.org", *ASKS[1:]),
        (f"Origin: {HERE}.evil.org", *ASKS[1:]),
        ("Origin: null", *ASKS[1:]),
        ASKS[1:],
        ASKS[:1],
    ],
)
async def test_other_origins_and_plain_options_are_no_preflight(headers):
    async with world(cors=ALLOWED) as plane:
        got = await plane.ask(preflight(*headers))
    assert (got.status, json.loads(got.body)["code"]) == (401, "unauthorized")
    assert "access-control-allow-methods" not in cors_headers(got)
    allowed = got.header("access-control-allow-origin")
    assert allowed == (HERE if headers == ASKS[:1] else None)


async def test_any_origin_may_be_allowed_and_credentials_never():
    async with world(OK, cors=Cors(origins=frozenset({ANY}))) as plane:
        asked = await plane.ask(preflight("Origin: https://x.example", *ASKS[1:]))
        served = await plane.ask(post(BODY, headers=("Origin: https://x.example",)))
    for got in (asked, served):
        assert got.header("access-control-allow-origin") == "*"
        assert got.header("access-control-allow-credentials") is None
        assert got.header("vary") is None


async def test_odd_header_names_are_not_echoed():
    async with world(cors=ALLOWED) as plane:
        got = await plane.ask(preflight(*ASKS[:2], "Access-Control-Request-Headers: a b; c"))
    assert got.header("access-control-allow-headers").startswith("authorization, content-type")


async def test_what_an_engine_says_of_origins_is_not_passed_on():
    answer = json_answer(b"{}").replace(
        b"server: uvicorn\r\n", b"access-control-allow-origin: *\r\n"
    )
    async with world(answers(answer), cors=ALLOWED) as plane:
        got = await plane.ask(post(BODY, headers=("Origin: https://other.example",)))
    assert cors_headers(got) == {"vary": "Origin"}

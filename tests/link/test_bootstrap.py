"""Whoever finds the bootstrap listener gets little out of it: everything there has a bound."""

from __future__ import annotations

import contextlib
import json
import ssl

import pytest
import trio

from capyctl.link.bootstrap import Bootstrap
from capyctl.link.contexts import joining_context, server_tls_name
from capyctl.link.invitations import JoinRefused
from capyctl.link.strangers import Rate
from capyctl.wire.enrolment import JOIN_BODY_BYTES_MAX, JOIN_PATH, Redemption, write_redemption
from tests.link.trust import authority

POST = f"POST {JOIN_PATH} HTTP/1.1\r\nhost: x\r\n"


@contextlib.asynccontextmanager
async def bootstrapping(folder, redeem=None, **bounds):
    """``connect(tls=True)`` to a listener whose redemptions ``redeem`` answers."""
    ours = authority(folder)
    log, streams = [], []

    async def refuse(asked):
        raise JoinRefused("invitation_unknown", f"no {asked.host_name} here")

    async def connect(*, tls=True):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        streams.append(stream)
        if tls:
            context = joining_context(ours.certificate_pem)
            name = server_tls_name(ours.server_id)
            stream = trio.SSLStream(stream, context, server_hostname=name)
        return stream

    bootstrap = Bootstrap(
        ours.contexts().bootstrap,
        redeem or refuse,
        log=lambda address, why: log.append((address, why)),
        **bounds,
    )
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bootstrap.serve, listeners)
        connect.log = log
        try:
            yield connect
        finally:
            for stream in streams:
                await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


async def everything(stream) -> bytes:
    """All that comes until the other side ends or cuts the connection."""
    found = bytearray()
    with contextlib.suppress(trio.BrokenResourceError):
        while piece := await stream.receive_some(65536):
            found += piece
    return bytes(found)


async def exchange(connect, request: bytes) -> tuple[int, dict]:
    stream = await connect()
    await stream.send_all(request)
    answer = await everything(stream)
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def posted(body: bytes, length: int | None = None) -> bytes:
    length = len(body) if length is None else length
    return f"{POST}content-length: {length}\r\n\r\n".encode() + body


ASKED = write_redemption(
    Redemption(
        invitation="0" * 26, secret="s" * 43, host_name="gpu-1", recovers=False, request_pem="x"
    )
)


async def test_a_refusal_is_answered_in_words_and_logged_without_the_secret(tmp_path):
    async with bootstrapping(tmp_path) as connect:
        status, body = await exchange(connect, posted(ASKED))

    assert status == 403
    assert body["error"] == {"code": "invitation_unknown", "message": "no gpu-1 here"}
    assert connect.log == [("127.0.0.1", "invitation_unknown: no gpu-1 here")]


@pytest.mark.parametrize(
    ("request_bytes", "status", "words"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", 404, "machines join at POST"),
        (f"GET {JOIN_PATH} HTTP/1.1\r\nhost: x\r\n\r\n".encode(), 405, "machines join at POST"),
        (posted(b"{}"), 400, "not what it should be: host_name"),
        (posted(b"\xff"), 400, "not UTF-8"),
        (posted(ASKED[:-1] + b',"more":1}'), 400, "not what it should be"),
        (posted(ASKED.replace(b"s" * 43, b"short")), 400, "not what it should be: secret"),
        (posted(b"x" * (JOIN_BODY_BYTES_MAX + 1)), 413, "over 16384 bytes"),
        (b"nonsense\r\n\r\n", 400, "no HTTP/1.1 request"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 9000, 431, "no HTTP/1.1 request"),
    ],
)
async def test_anything_else_is_refused(tmp_path, request_bytes, status, words):
    async with bootstrapping(tmp_path) as connect:
        found, body = await exchange(connect, request_bytes)

    assert found == status
    assert words in body["error"]["message"]
    assert "short" not in json.dumps(body)


async def test_a_body_that_never_ends_is_cut_off(tmp_path):
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    async with bootstrapping(tmp_path) as connect:
        begin = f"{POST}transfer-encoding: chunked\r\n\r\n".encode()
        status, _ = await exchange(connect, begin + chunk * 8)

    assert status == 413


async def test_who_speaks_no_tls_gets_no_answer(tmp_path):
    async with bootstrapping(tmp_path) as connect:
        stream = await connect(tls=False)
        await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        answer = await everything(stream)

    assert not answer or answer[0] == 21, "a TLS alert, and nothing of ours"
    assert len(answer) < 50
    assert "no TLS" in connect.log[0][1]


@pytest.mark.parametrize("tls", [False, True])
async def test_who_says_nothing_is_cut_off(tmp_path, tls):
    async with bootstrapping(tmp_path, exchange_s_max=0.2) as connect:
        stream = await connect(tls=tls)
        begun_s = trio.current_time()
        if tls:
            await stream.send_all(POST.encode())
        await everything(stream)

        assert 0.1 < trio.current_time() - begun_s < 15


async def test_no_more_than_so_many_are_served_at_once(tmp_path):
    async with bootstrapping(tmp_path, connections_max=2) as connect:
        held = [await connect() for _ in range(2)]
        for stream in held:
            await stream.do_handshake()

        refused = await connect()
        with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
            await refused.do_handshake()

        await held[0].send_all(posted(ASKED))
        assert await everything(held[0])
        await held[0].aclose()
        assert (await exchange_when_free(connect))[0] == 403


async def exchange_when_free(connect):
    """The place is free once the listener has seen the end of the connection before."""
    with trio.fail_after(5):
        while True:
            try:
                return await exchange(connect, posted(ASKED))
            except trio.BrokenResourceError:
                await trio.lowlevel.checkpoint()


async def test_no_more_than_so_many_come_in_a_second(tmp_path):
    served = 0
    async with bootstrapping(tmp_path, per_s_max=3) as connect:
        for _ in range(6):
            stream = await connect()
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.do_handshake()
                served += 1
            await trio.aclose_forcefully(stream)

    assert served in (3, 4)


def test_room_for_connections_comes_back_with_time():
    rate = Rate(2)

    taken = [rate.take(at_s) for at_s in (5, 5, 5, 5.25, 5.5, 5.5, 100, 100, 100)]

    assert taken == [True, True, False, False, True, False, True, True, False]


async def test_a_request_that_waits_for_leave_to_send_its_body_gets_it(tmp_path):
    """As curl asks for it."""
    async with bootstrapping(tmp_path) as connect:
        stream = await connect()
        head = f"{POST}expect: 100-continue\r\ncontent-length: {len(ASKED)}\r\n\r\n"
        await stream.send_all(head.encode())
        assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 100")
        await stream.send_all(ASKED)

        assert b" 403 " in await everything(stream)

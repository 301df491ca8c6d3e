"""Listening on loopback only, without noise, and ending in order."""

from __future__ import annotations

import json
import logging

import pytest
import trio

from capyctl.api.app import make_app
from capyctl.api.serve import open_loopback, serve_management
from tests.api.clients import CONFIG, JSON, TOKEN, Socket, served, until_quiet
from tests.api.fake_management import FakeClock, FakeManagement

CHANGE = [JSON, (b"idempotency-key", b"key")]
CREATE = json.dumps({"config": CONFIG, "activate": False}).encode()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.com", "::", ""])
async def test_other_addresses_are_refused(host):
    with pytest.raises(ValueError, match="loopback"):
        await open_loopback(host, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
async def test_loopback_addresses_are_served(host):
    (listener,) = await open_loopback(host, 0)
    async with listener:
        address, port = listener.socket.getsockname()

    assert address.startswith("127.")
    assert port > 0


async def test_a_taken_port_is_an_error():
    (listener,) = await open_loopback("127.0.0.1", 0)
    async with listener:
        with pytest.raises(OSError, match=r"[Aa]ddress already in use"):
            await open_loopback("127.0.0.1", listener.socket.getsockname()[1])


async def test_serving_says_nothing(caplog, capfd):
    caplog.set_level(logging.DEBUG)
    async with served() as server:
        await server.ask("GET", "/snapshot")
        await server.ask("GET", "/nowhere")

    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")


async def test_streams_and_idle_connections_end_at_once():
    fake = FakeManagement()
    fake.emit("ready_committed")
    async with served(fake, graceful_s=3600) as server:
        async with await server.connect() as stream, await server.connect() as idle:
            await stream.send("GET", "/events")
            await stream.head()
            frame = await stream.chunk()
            await idle.send("GET", "/snapshot")
            await idle.answer()
            server.shutdown.set()
            await server.ended.wait()
            end = await stream.chunk()
            rest = (await stream.read_to_end(), await idle.read_to_end())

    assert frame.startswith(b"id: ")
    assert end == b""
    assert rest == (b"", b"")


async def test_a_request_in_flight_is_answered_before_the_end():
    fake = FakeManagement()
    held = fake.hold("create")
    async with served(fake, graceful_s=3600) as server:
        async with await server.connect() as socket:
            await socket.send("POST", "/deployments", headers=CHANGE, body=CREATE)
            await held.wait_arrived(1)
            server.shutdown.set()
            await until_quiet()
            with pytest.raises(OSError, match="connect"):
                await server.connect()
            held.open()
            answer = await socket.answer()
            await server.ended.wait()

    assert answer.status == 202


async def test_what_takes_longer_than_the_grace_is_cut():
    fake = FakeManagement()
    held = fake.hold("create")
    async with served(fake, graceful_s=0.05) as server:
        async with await server.connect() as socket:
            await socket.send("POST", "/deployments", headers=CHANGE, body=CREATE)
            await held.wait_arrived(1)
            server.shutdown.set()
            await server.ended.wait()

            assert await socket.read_to_end() == b""


async def test_a_client_that_does_not_read_does_not_delay_the_end():
    fake = FakeManagement()

    async def snapshot():
        return b"x" * 64_000_000

    fake.snapshot = snapshot
    async with served(fake, graceful_s=0.05, send_s_max=3600) as server:
        async with await server.connect() as socket:
            await socket.send("GET", "/snapshot")
            await socket.head()
            server.shutdown.set()
            await server.ended.wait()


async def test_cancelling_cuts_everything():
    fake = FakeManagement()
    held = fake.hold("snapshot")
    app = make_app(fake, token=TOKEN, clock=FakeClock())
    listeners = await open_loopback("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(
                lambda task_status: serve_management(
                    app, listeners, shutdown=trio.Event(), task_status=task_status
                )
            )
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await Socket(stream).send("GET", "/snapshot")
                await held.wait_arrived(1)
                scope.cancel()

    assert scope.cancelled_caught
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream("127.0.0.1", port)

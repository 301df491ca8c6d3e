"""TLS over a polled socket: the same bytes in any pieces, and every end told apart."""

import contextlib
import random
import socket
from collections.abc import AsyncIterator

import pytest
import trio

from capyctl.dataplane.parking import Bell
from capyctl.dataplane.poller import Poller
from capyctl.dataplane.tls_socket import TlsSocket
from tests.dataplane import certificates

NAME = "host1.test"


class Side:
    """Sends a script of pieces as the socket takes them, and keeps what it hears."""

    def __init__(self, secured: TlsSocket, bell: Bell, pieces: list[bytes]) -> None:
        self.secured = secured
        self.bell = bell
        self.unsent = list(pieces)
        self.heard = b""
        self.ended: object = None
        secured.on_readable = self.read
        secured.on_writable = self.write

    def write(self) -> None:
        try:
            while self.unsent:
                taken = self.secured.send(self.unsent[0])
                self.unsent[0] = self.unsent[0][taken:]
                if not self.unsent[0]:
                    self.unsent.pop(0)
        except BlockingIOError:
            pass
        self.bell.ring()

    def read(self) -> None:
        try:
            while self.ended is None:
                data = self.secured.recv(64 * 1024)
                if not data:
                    self.ended = "in order"
                self.heard += data
                if data and len(data) < 64 * 1024 and not self.secured.hung_up:
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            self.ended = error
        self.bell.ring()

    @property
    def all_sent(self) -> bool:
        return not self.unsent and not self.secured.holds_back


class Pair:
    def __init__(self, poller: Poller, buffer_bytes: int) -> None:
        self.bell = Bell()
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        authority = certificates.ours()
        listening = certificates.listening(authority, certificates.of(NAME))
        calling = certificates.calling(authority, certificates.of("server.test"))
        self.server = TlsSocket(poller.add(ends[0]), listening)
        self.client = TlsSocket(poller.add(ends[1]), calling, server_name=NAME)
        self.ended: list[str | None] = []

    async def shaken(self) -> None:
        for side in (self.server, self.client):
            side.shake_hands(self._ended)
        while len(self.ended) < 2:
            await self.bell.wait()
        assert self.ended == [None, None]

    def _ended(self, why: str | None) -> None:
        self.ended.append(why)
        self.bell.ring()


@contextlib.asynccontextmanager
async def paired(buffer_bytes: int) -> AsyncIterator[Pair]:
    """Two ends that have shaken hands."""

    def fail(error: Exception) -> None:
        raise error

    poller = Poller(fail)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poller.run)
            pair = Pair(poller, buffer_bytes)
            await pair.shaken()
            yield pair
            nursery.cancel_scope.cancel()
    finally:
        poller.close()


@pytest.mark.parametrize("seed", range(6))
async def test_bytes_pass_both_ways_through_small_buffers(seed):
    chance = random.Random(seed)

    def pieces() -> list[bytes]:
        sizes = [1, 17, 16_384, 16_385, 65_536, 300_000]
        return [chance.randbytes(chance.choice(sizes)) for _ in range(12)]

    async with paired(chance.choice([4096, 65_536])) as pair:
        out, back = pieces(), pieces()
        one, two = Side(pair.client, pair.bell, out), Side(pair.server, pair.bell, back)
        one.write()
        two.write()
        expected = b"".join(out), b"".join(back)
        while (two.heard, one.heard) != expected or not (one.all_sent and two.all_sent):
            assert expected[0].startswith(two.heard)
            assert expected[1].startswith(one.heard)
            await pair.bell.wait()


async def test_a_body_may_be_received_into_its_place():
    body = random.Random(1).randbytes(200_000)
    async with paired(65_536) as pair:
        sends = Side(pair.client, pair.bell, [body + b"more"])
        got = bytearray(len(body))
        filled = 0
        rest = b""

        def read() -> None:
            nonlocal filled, rest
            try:
                while filled < len(body):
                    filled += pair.server.recv_into(memoryview(got)[filled : filled + 9000])
                rest += pair.server.recv(64 * 1024)
            except BlockingIOError:
                pass
            pair.bell.ring()

        pair.server.on_readable = read
        sends.write()
        while rest != b"more":
            await pair.bell.wait()
        assert bytes(got) == body


@pytest.mark.parametrize("in_order", [True, False])
async def test_an_end_is_told_from_a_cut_after_all_bytes(in_order):
    async with paired(65_536) as pair:
        hears = Side(pair.client, pair.bell, [])
        assert pair.server.send(b"last words") == 10
        if in_order:
            pair.server.end_sending()
        pair.server.close()
        while hears.ended is None:
            await pair.bell.wait()
        assert hears.heard == b"last words"
        assert pair.client.declined == in_order
        if in_order:
            assert hears.ended == "in order"
        else:
            assert "cut off" in str(hears.ended)


async def test_what_is_held_back_is_told_until_the_kernel_has_it():
    async with paired(4096) as pair:
        hears = Side(pair.server, pair.bell, [])
        pair.server.on_readable = None
        assert pair.client.send(b"x" * 200_000) == 200_000
        assert pair.client.holds_back
        with pytest.raises(BlockingIOError):
            pair.client.send(b"y")
        pair.client.on_writable = pair.bell.ring
        pair.server.on_readable = hears.read
        hears.read()
        while pair.client.holds_back:
            await pair.bell.wait()
        while len(hears.heard) < 200_000:
            await pair.bell.wait()


async def test_bytes_that_are_no_tls_are_a_failure():
    async with paired(4096) as pair:
        hears = Side(pair.client, pair.bell, [])
        pair.server.socket.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while hears.ended is None:
            await pair.bell.wait()
        assert isinstance(hears.ended, OSError)
        assert hears.heard == b""
        assert not pair.client.declined

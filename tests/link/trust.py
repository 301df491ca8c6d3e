"""Servers and hosts that trust each other or do not, and handshakes between them on loopback."""

from __future__ import annotations

import itertools
import ssl
import time
from pathlib import Path

import attrs
import trio

from capyctl.config.owner_files import write_owner_file
from capyctl.domain.certificates import IssuedCertificate
from capyctl.domain.ids import HostId
from capyctl.link.authority import Authority, open_authority
from capyctl.link.certificates import key_to_pem, new_key, request_pem
from capyctl.link.contexts import TlsFiles, host_ingress_context, host_link_context
from capyctl.link.handshake import HandshakeFailed, accept_tls

NOW_MS = 1_790_000_000_000
DAY_MS = 86_400_000
A = HostId("01HAAAAAAAAAAAAAAAAAAAAAAA")
B = HostId("01HBBBBBBBBBBBBBBBBBBBBBBB")
NAMES = ("server.test", "127.0.0.1")
_SERVERS = itertools.count(1)


def wall_ms() -> int:
    """TLS goes by the real clock, so certificates that it shall accept are made by it."""
    return int(time.time() * 1000)


def authority(folder: Path, now_ms: int | None = None, **settings) -> Authority:
    return open_authority(
        folder / "identity",
        new_id=lambda: f"01S{next(_SERVERS):023d}",
        names=NAMES,
        now_ms=wall_ms() if now_ms is None else now_ms,
        **settings,
    )


@attrs.frozen(kw_only=True)
class Machine:
    """A host with a certificate."""

    files: TlsFiles
    issued: IssuedCertificate

    @property
    def link(self) -> ssl.SSLContext:
        return host_link_context(self.files)

    @property
    def ingress(self) -> ssl.SSLContext:
        return host_ingress_context(self.files)


def machine(folder: Path, of: Authority, host: HostId = A, *, now_ms: int | None = None) -> Machine:
    key = new_key()
    issued = of.issue(request_pem(key), host, wall_ms() if now_ms is None else now_ms)
    chain = folder / f"{issued.serial}.pem"
    write_owner_file(chain, key_to_pem(key) + issued.pem)
    return Machine(files=TlsFiles(chain=chain, authority_pem=of.certificate_pem), issued=issued)


@attrs.frozen(kw_only=True)
class Met:
    """How a handshake over loopback ended, as each side saw it."""

    client: trio.SSLStream | BaseException
    server: trio.SSLStream | BaseException
    read: bytes | BaseException | None
    """What the client read after it had sent a request; None when it had no handshake."""

    @property
    def spoken(self) -> bool:
        """Whether anything but TLS went to the client."""
        return isinstance(self.read, bytes) and self.read != b""


async def meet(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> Met:
    """A connection from ``client`` to ``server``; the server sends a line if TLS lets it."""
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    host, port = listener.socket.getsockname()
    outcome: dict = {"read": None}

    async def serve() -> None:
        async with listener, await listener.accept() as raw:
            try:
                outcome["server"] = tls = await accept_tls(raw, server)
                await tls.send_all(b"hello\n")
            except HandshakeFailed as problem:
                outcome["server"] = problem

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with await trio.open_tcp_stream(host, port) as raw:
            tls = trio.SSLStream(raw, client, server_hostname=name)
            try:
                await tls.do_handshake()
                outcome["client"] = tls
            except (trio.BrokenResourceError, ssl.SSLError) as problem:
                outcome["client"] = problem
            if isinstance(outcome["client"], trio.SSLStream):
                try:
                    await tls.send_all(b"GET / HTTP/1.1\r\n" * 100)
                    outcome["read"] = await tls.receive_some(100)
                except (trio.BrokenResourceError, ssl.SSLError) as problem:
                    outcome["read"] = problem
    return Met(**outcome)

"""TLS handshakes that tell the one who is refused why.

Trio's `SSLStream` drops the alert that TLS has ready when it refuses a certificate, so that the
other side sees a cut connection and nobody learns that its host was revoked, or whose it is.
"""

from __future__ import annotations

import ssl
from typing import TypeAlias

import trio

from capyctl.link.peers import why_refused

HANDSHAKE_S_MAX = 10.0
_LINGER_S_MAX = 1.0
_LINGER_BYTES_MAX = 64 << 10

TlsStream: TypeAlias = trio.SSLStream[trio.SocketStream]


class HandshakeFailed(Exception):
    """The other side is not let in, or did not finish in time. Its connection is closed."""


async def accept_tls(
    raw: trio.SocketStream, context: ssl.SSLContext, *, within_s: float = HANDSHAKE_S_MAX
) -> TlsStream:
    """TLS over ``raw`` as the side that listens, once the handshake is done.

    Cancelling leaves ``raw`` open and of no use.

    Raises:
        HandshakeFailed: after ``within_s`` seconds, or when TLS refused; the alert is sent.
    """
    tls = trio.SSLStream(raw, context, server_side=True)
    try:
        with trio.fail_after(within_s):
            await tls.do_handshake()
    except trio.TooSlowError:
        await trio.aclose_forcefully(raw)
        raise HandshakeFailed(f"no TLS handshake within {within_s:g} s") from None
    except (trio.BrokenResourceError, trio.ClosedResourceError) as problem:
        await _send_alert(tls, raw)
        why = (
            why_refused(problem, dialled=False)
            or f"no TLS: {problem.__cause__ or 'the connection was cut'}"
        )
        raise HandshakeFailed(why) from problem
    return tls


async def shake_hands(tls: TlsStream) -> None:
    """TLS as the side that dialled. The connection is closed when that fails.

    Cancelling leaves it open and of no use.

    Raises:
        trio.BrokenResourceError: it failed; the alert is sent.
    """
    try:
        await tls.do_handshake()
    except trio.BrokenResourceError:
        await _send_alert(tls, tls.transport_stream)
        raise


async def _send_alert(tls: TlsStream, raw: trio.SocketStream) -> None:
    """Send what TLS has left to say, and let it arrive: closing at once would cut it off."""
    alert = tls._outgoing.read()
    with trio.move_on_after(_LINGER_S_MAX):
        try:
            if alert:
                await raw.send_all(alert)
                await raw.send_eof()
                await _discard(raw)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
    await trio.aclose_forcefully(raw)


async def _discard(raw: trio.SocketStream) -> None:
    # Unread bytes at a close make the kernel reset the connection, and the alert is lost.
    bytes_count = 0
    while bytes_count < _LINGER_BYTES_MAX and (piece := await raw.receive_some(4096)):
        bytes_count += len(piece)

"""Which of our machines is at the other end of a TLS connection, and why one was refused."""

from __future__ import annotations

import hashlib
import ssl
from typing import Any, Literal, Protocol

import attrs

from capyctl.domain.hosts import HostRecord, HostState
from capyctl.domain.ids import HostId

HOST_URN = "urn:capyctl:host:"
SERVER_URN = "urn:capyctl:server:"


class Tls(Protocol):
    """`ssl.SSLObject`, `ssl.SSLSocket` and `trio.SSLStream`, after their handshake."""

    def getpeercert(self, binary_form: bool = ..., /) -> Any: ...


@attrs.frozen(kw_only=True)
class PeerRefusal:
    """Why a certificate that our authority signed is not accepted; to send or to log."""

    code: Literal["host_revoked", "host_unknown", "host_identity_superseded", "host_mismatch"]
    message: str


def peer_host_id(tls: Tls) -> HostId | None:
    """The host whose certificate the other side proved to have; None when it is no host."""
    found = _urn(tls, HOST_URN)
    return None if found is None else HostId(found)


def peer_server_id(tls: Tls) -> str | None:
    """The server whose certificate the other side proved to have; None when it is no server."""
    return _urn(tls, SERVER_URN)


def peer_fingerprint(tls: Tls) -> str | None:
    """SHA-256 of the other side's certificate in DER, hexadecimal; None when it showed none."""
    der = tls.getpeercert(True)
    return hashlib.sha256(der).hexdigest() if der else None


def refusal(
    tls: Tls, record: HostRecord | None, *, expected: HostId | None = None
) -> PeerRefusal | None:
    """Why the host at the other end may not go on, by what is stored of it; None when it may.

    Args:
        record: what is stored under `peer_host_id`; None when nothing is.
        expected: the host that this connection was made for, if it was made for one.
    """
    host = peer_host_id(tls)
    if host is None:
        return PeerRefusal(code="host_unknown", message="the certificate is not one of a host")
    if expected is not None and host != expected:
        return PeerRefusal(
            code="host_mismatch",
            message=f"host {host} answers where host {expected} should: check the addresses",
        )
    if record is None:
        return PeerRefusal(
            code="host_unknown",
            message=f"this server knows no host {host}: it may have been put back from an older "
            "backup. Invite the machine under a new name and join it again",
        )
    return record_refusal(record, peer_fingerprint(tls))


def record_refusal(record: HostRecord, fingerprint: str | None) -> PeerRefusal | None:
    """Why a host that shows this certificate may not go on; None when it may."""
    again = how_to_return(record.name)
    if record.state is HostState.REVOKED:
        return PeerRefusal(
            code="host_revoked",
            message=f"host {record.name} was revoked; to take it back: {again}",
        )
    if fingerprint not in record.certificates:
        return PeerRefusal(
            code="host_identity_superseded",
            message=f"the identity of host {record.name} is older than the one it has now, as "
            "after a backup was put back. Put the newer one back; or, on the server, `capyctl "
            f"revoke host {record.name}`, and then {again}",
        )
    return None


def how_to_return(name: str) -> str:
    """What takes a host back that was revoked."""
    return (
        f"on the server `capyctl invite host {name} --recover --output F`, on this machine "
        "`capyctl join host --recover --join-file F`, then start it again"
    )


def why_refused(problem: BaseException, *, dialled: bool = True) -> str | None:
    """What the other side's TLS alert, or our own look at its certificate, means for people.

    Args:
        problem: what the handshake, or the first read after it, raised.
        dialled: by this side; else the other one came to us.

    Returns:
        Words that say what to do; None when TLS has nothing to do with it.
    """
    found = _ssl_error(problem)
    if found is None:
        return None
    if isinstance(found, ssl.SSLCertVerificationError):
        ours = _OURS if dialled else _OURS | _OF_WHO_CAME
        return ours.get(found.verify_code) or (
            f"the other side's certificate is not valid: {found.verify_message}"
        )
    if not dialled and _reason(found).endswith(_UNKNOWN_CA):
        return "the other side trusts another authority: it belongs to another server"
    reason = _reason(found)
    return next((text for end, text in _ALERTS.items() if reason.endswith(end)), None)


def is_foreign(problem: BaseException) -> bool:
    """Whether one side does not trust the authority of the other."""
    found = _ssl_error(problem)
    if isinstance(found, ssl.SSLCertVerificationError):
        return found.verify_code in _FOREIGN
    return found is not None and _reason(found).endswith(_UNKNOWN_CA)


def revoked(problem: BaseException) -> bool:
    """Whether the other side's alert says that our certificate was revoked."""
    found = _ssl_error(problem)
    return found is not None and _reason(found).endswith("CERTIFICATE_REVOKED")


_OURS = {
    9: "the other side's certificate is not valid yet: compare the clocks of both machines",
    10: "the other side's certificate has expired: compare the clocks of both machines",
    18: "the other side shows a certificate it made itself: another program listens there",
    19: "the other side's certificate is from another authority: this is not our server",
    20: "the other side's certificate is from another authority: this is not our server",
    23: "the other side's certificate was revoked",
    62: "the other side is another machine than was meant: check the address",
    64: "the other side is another machine than was meant: check the address",
}
"""By OpenSSL's X509_V_ERR numbers."""

_FOREIGN = (18, 19, 20)
_OF_WHO_CAME = dict.fromkeys(
    (19, 20),
    "the other side's certificate is from another authority: it belongs to another server",
)
_UNKNOWN_CA = "UNKNOWN_CA"
NOT_JOINED = (
    "see that the address leads to the server that this machine joined. If that was set up anew, "
    "move this machine's `identity` folder away and join again"
)
"""What to do for a host whose server `is_foreign`."""

_ALERTS = {
    "CERTIFICATE_REVOKED": "the server has revoked this host's certificate",
    "CERTIFICATE_EXPIRED": "the other side takes this machine's certificate for expired, or not "
    "valid yet: compare the clocks of both machines",
    "BAD_CERTIFICATE": "the other side takes this machine's certificate for invalid: compare the "
    "clocks of both machines",
    _UNKNOWN_CA: "the other side trusts another authority: this machine joined another server",
    "CERTIFICATE_REQUIRED": "the other side asks for a certificate, and none was shown",
}


def _ssl_error(problem: BaseException | None) -> ssl.SSLError | None:
    for _ in range(8):
        if problem is None or isinstance(problem, ssl.SSLError):
            return problem
        problem = problem.__cause__ or problem.__context__
    return None


def _reason(problem: ssl.SSLError) -> str:
    # Only those that OpenSSL itself raised have one.
    return getattr(problem, "reason", None) or ""


def _urn(tls: Tls, prefix: str) -> str | None:
    shown = tls.getpeercert() or {}
    names = [value for kind, value in shown.get("subjectAltName", ()) if kind == "URI"]
    found = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return found[0] if len(found) == 1 and len(names) == 1 else None

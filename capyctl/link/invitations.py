"""Invitations: a secret that lets one machine in once, and when one is refused. All pure.

The server keeps the secret's digest alone, so nobody who reads its store can use an invitation.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Literal, TypeAlias

import attrs

from capyctl.domain.hosts import Invitation
from capyctl.domain.ids import HostId
from capyctl.wire.enrolment import JoinFile, Redemption, write_join_file

SECRET_BYTES = 32

JoinCode: TypeAlias = Literal[
    "invitation_unknown",
    "invitation_used",
    "invitation_expired",
    "host_name_mismatch",
    "recovery_expected",
    "recovery_not_expected",
    "key_not_fresh",
    "host_revoked",
    "host_name_taken",
    "host_not_revoked",
    "join_file_unusable",
    "join_request_unusable",
    "joined_already",
    "other_server",
    "server_unreachable",
    "server_not_trusted",
    "server_busy",
    "server_failed",
]


class JoinRefused(Exception):
    """The machine does not join. The message says what to do; it holds no secret."""

    def __init__(self, code: JoinCode | str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class RenewalRefused(Exception):
    """The host keeps the certificate it has. The text says what to do."""


@attrs.frozen(kw_only=True)
class ServerAddresses:
    """What hosts dial, as ``https://<name or address>:<port>``."""

    bootstrap: str
    control: str


def secret_digest(secret: str) -> str:
    """SHA-256, hexadecimal. No salt: a secret is 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def make_invitation(
    name: str,
    *,
    recover: HostId | None,
    id: str,
    secret: str,
    server_id: str,
    authority_pem: str,
    addresses: ServerAddresses,
    now_ms: int,
    expires_in_ms: int,
) -> tuple[Invitation, str]:
    """What to store of a fresh invitation, and the text of its join file.

    Args:
        recover: the revoked host that is to come back.
        secret: 32 random bytes in base64url; it stands in the join file and nowhere else.
    """
    expires_at_ms = now_ms + expires_in_ms
    file = JoinFile(
        host_name=name,
        recover=recover,
        server_id=server_id,
        bootstrap_address=addresses.bootstrap,
        control_address=addresses.control,
        authority_pem=authority_pem,
        invitation=id,
        secret=secret,
        expires_at_ms=expires_at_ms,
    )
    stored = Invitation(
        id=id,
        host_name=name,
        secret_digest=secret_digest(secret),
        expires_at_ms=expires_at_ms,
        recover=recover,
    )
    return stored, write_join_file(file)


def check_redemption(
    invitation: Invitation | None, asked: Redemption, key_digest: str, *, now_ms: int
) -> None:
    """Let an invitation be used, also again by the key that used it, until it expires.

    1. Unknown, or another secret: not told apart. 2. Another name, or the other kind.
    3. Used by another key. 4. Expired, also for the key that used it.

    Raises:
        JoinRefused: anything else.
    """
    digest = "0" * 64 if invitation is None else invitation.secret_digest
    # In constant time, and as long for an invitation that is not there.
    known = hmac.compare_digest(secret_digest(asked.secret), digest)
    if invitation is None or not known:
        raise JoinRefused(
            "invitation_unknown",
            "this server knows no such invitation: it may have been put back from a backup, or the "
            f"join file was changed. On the server: {invite_again(asked.host_name)}",
        )
    name = invitation.host_name
    _check_kind(invitation, asked)
    if invitation.used_at_ms is not None and invitation.key_digest != key_digest:
        raise JoinRefused(
            "invitation_used",
            f"the invitation for {name} was used already, by a machine with another key. If that "
            "was this machine, it has joined: `capyctl start host`. If not, `capyctl revoke host "
            f"{name}` on the server, and invite again",
        )
    if now_ms >= invitation.expires_at_ms:
        late_s = (now_ms - invitation.expires_at_ms) // 1000
        raise JoinRefused(
            "invitation_expired",
            f"the invitation for {name} expired {late_s} s ago by the server's clock. "
            + _after_expiry(invitation),
        )


def _after_expiry(invitation: Invitation) -> str:
    """A machine that was let in and never heard of it has its name, so it is recovered."""
    name = invitation.host_name
    if invitation.used_at_ms is None:
        again = invite_again(name, recover=invitation.recover is not None)
        return f"On the server: {again}"
    return (
        "This machine was let in with it: `capyctl start host`. If that says that it has not "
        f"joined, on the server `capyctl revoke host {name}` and "
        f"{invite_again(name, recover=True)}, here `capyctl join host --recover --join-file F`"
    )


def _check_kind(invitation: Invitation, asked: Redemption) -> None:
    name = invitation.host_name
    if asked.host_name != name:
        raise JoinRefused(
            "host_name_mismatch",
            f"the invitation is for a host named {name}, and this machine's document says "
            f"{asked.host_name}: change `name` in the document, or invite {asked.host_name}",
        )
    if asked.recovers and invitation.recover is None:
        raise JoinRefused(
            "recovery_not_expected",
            f"the invitation for {name} is for a new host: join without --recover",
        )
    if not asked.recovers and invitation.recover is not None:
        raise JoinRefused(
            "recovery_expected",
            f"the invitation takes the revoked host {name} back: join with --recover",
        )


def invite_again(name: str, *, recover: bool = False) -> str:
    """The command, as a person types it."""
    option = " --recover" if recover else ""
    return f"`capyctl invite host {name}{option} --output F`"

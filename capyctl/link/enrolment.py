"""On a server: invitations made and redeemed, certificates renewed, and revocations carried to TLS.

Whoever owns the records of hosts stores them; what is decided here are certificates.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol, TypeAlias

import trio

from capyctl.contracts.clock import Clock, Ids
from capyctl.contracts.store import Committed
from capyctl.domain.certificates import IssuedCertificate
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import HostRecord, HostState, Invitation
from capyctl.domain.ids import HostId
from capyctl.link.authority import Authority
from capyctl.link.certificates import BadCertificate, check_request
from capyctl.link.invitations import (
    SECRET_BYTES,
    JoinRefused,
    RenewalRefused,
    ServerAddresses,
    check_redemption,
    invite_again,
    make_invitation,
)
from capyctl.messages.hosts import EnrolHost, RenewHost
from capyctl.wire.enrolment import Redeemed, Redemption

RENEWAL_PAUSE_MS = 3_600_000
"""A host is given another key's certificate at most once an hour: none of them is deleted."""
VALID_MAX = 4

AskOwner: TypeAlias = Callable[[EnrolHost | RenewHost], Awaitable[HostRecord]]
"""Asks the owner of the records; returns once the change is stored. May raise Refused."""


class HostBook(Protocol):
    """What is committed of hosts. Reads of memory."""

    @property
    def hosts(self) -> Mapping[HostId, HostRecord]: ...

    @property
    def invitations(self) -> Mapping[str, Invitation]: ...


class Enrolment:
    """One for a server. Listens to the store: what is revoked there is refused by TLS at once."""

    def __init__(
        self,
        *,
        authority: Authority,
        addresses: ServerAddresses,
        book: HostBook,
        ask_owner: AskOwner,
        clock: Clock,
        ids: Ids,
        issued: Iterable[IssuedCertificate],
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        Args:
            issued: every certificate that is stored, the oldest first.
            log: told, in words, of a revocation that TLS cannot be taught.
        """
        self._authority = authority
        self._addresses = addresses
        self._book = book
        self._ask_owner = ask_owner
        self._clock = clock
        self._ids = ids
        self._log = log
        self._by_host: dict[HostId, list[IssuedCertificate]] = {}
        self._by_key: dict[str, IssuedCertificate] = {}
        # Looking, issuing and storing are one step: two machines with one invitation race here.
        self._one_at_a_time = trio.Lock()
        for one in issued:
            self._know(one)
        for record in book.hosts.values():
            self._revoke(record)

    def invitation(
        self, name: str, *, recover: HostId | None, expires_in_ms: int
    ) -> tuple[Invitation, str]:
        """A fresh invitation, and its join file's text with the secret. Stores nothing."""
        return make_invitation(
            name,
            recover=recover,
            id=self._ids.ulid(),
            secret=secrets.token_urlsafe(SECRET_BYTES),
            server_id=self._authority.server_id,
            authority_pem=self._authority.certificate_pem,
            addresses=self._addresses,
            now_ms=self._clock.wall_ms(),
            expires_in_ms=expires_in_ms,
        )

    async def redeem(self, asked: Redemption) -> Redeemed:
        """Let a machine in, durably, and give it its certificate.

        The same key may ask again until the invitation expires, and gets the same certificate.
        Cancelling does not undo what was handed to the owner of the records.

        Raises:
            JoinRefused: nothing was changed.
        """
        try:
            key_digest = check_request(asked.request_pem)
        except BadCertificate as problem:
            raise JoinRefused("join_request_unusable", str(problem)) from problem
        async with self._one_at_a_time:
            invitation = self._book.invitations.get(asked.invitation)
            check_redemption(invitation, asked, key_digest, now_ms=self._clock.wall_ms())
            assert invitation is not None
            if invitation.used_at_ms is not None:
                return self._again(invitation, key_digest)
            return await self._let_in(invitation, asked, key_digest)

    async def renew(self, request_pem: str, host: HostId, in_use: str) -> str:
        """Another certificate for an enrolled host; the one it has stays valid, so nothing breaks.

        A key that asks again, because the answer was lost, gets the same certificate.

        Args:
            in_use: fingerprint of the certificate that the host asks with.

        Returns:
            PEM.

        Raises:
            RenewalRefused: the host goes on with what it has.
        """
        try:
            key_digest = check_request(request_pem)
        except BadCertificate as problem:
            raise RenewalRefused(str(problem)) from problem
        async with self._one_at_a_time:
            record = self._book.hosts.get(host)
            if record is None or record.state is HostState.REVOKED:
                raise RenewalRefused(f"host {host} is not enrolled")
            if in_use not in record.certificates:
                raise RenewalRefused(f"{record.name} asks with a certificate that is superseded")
            known = self._by_key.get(key_digest)
            if known is not None:
                if known.host != host or known.fingerprint not in record.certificates:
                    raise RenewalRefused("the key was used before: renewing takes a fresh one")
                return known.pem
            return await self._renewed(record, request_pem, in_use)

    def on_committed(self, batch: tuple[Committed, ...]) -> None:
        """For `Store.listen`: learns of certificates, and takes revoked ones out of use."""
        for committed in batch:
            for record in committed.change.puts:
                match record:
                    case IssuedCertificate():
                        self._know(record)
                    case HostRecord():
                        self._revoke(record)

    async def _let_in(self, invitation: Invitation, asked: Redemption, key_digest: str) -> Redeemed:
        if key_digest in self._by_key:
            raise JoinRefused(
                "key_not_fresh",
                "this machine's key was used before: a state directory is not copied between "
                f"hosts. {_start_empty(invitation)}",
            )
        now_ms = self._clock.wall_ms()
        host = invitation.recover or HostId(self._ids.ulid())
        issued = self._authority.issue(asked.request_pem, host, now_ms)
        record = HostRecord(
            id=host,
            name=invitation.host_name,
            certificates=(issued.fingerprint,),
            enrolled_at_ms=now_ms,
        )
        told = EnrolHost(
            invitation=invitation.id, host=record, key_digest=key_digest, issued=(issued,)
        )
        try:
            await self._ask_owner(told)
        except Refused as refused:
            raise JoinRefused(
                _JOIN_CODES.get(refused.code, "server_failed"), refused.message
            ) from (refused)
        return Redeemed(host=host, certificate_pem=issued.pem)

    def _again(self, invitation: Invitation, key_digest: str) -> Redeemed:
        known = self._by_key.get(key_digest)
        record = None if invitation.host is None else self._book.hosts.get(invitation.host)
        if known is None or record is None or known.host != record.id:
            raise JoinRefused(
                "invitation_used",
                f"the invitation for {invitation.host_name} was used, and what it was used for is "
                f"lost. {invite_again(invitation.host_name)}",
            )
        if record.state is HostState.REVOKED:
            raise JoinRefused(
                "host_revoked",
                f"{record.name} joined, and was revoked since. On the server: "
                f"{invite_again(record.name, recover=True)}",
            )
        return Redeemed(host=record.id, certificate_pem=known.pem)

    async def _renewed(self, record: HostRecord, request_pem: str, in_use: str) -> str:
        now_ms = self._clock.wall_ms()
        newest_ms = max((one.issued_at_ms for one in self._by_host.get(record.id, ())), default=0)
        if 0 <= now_ms - newest_ms < RENEWAL_PAUSE_MS:
            raise RenewalRefused(
                f"{record.name} was given a certificate {(now_ms - newest_ms) // 1000} s ago; it "
                f"may have another one {RENEWAL_PAUSE_MS // 1000} s after that"
            )
        issued = self._authority.issue(request_pem, record.id, now_ms)
        recent = [one for one in record.certificates if one != in_use][-(VALID_MAX - 2) :]
        told = RenewHost(
            host=record.id,
            certificates=(*recent, in_use, issued.fingerprint),
            issued=(issued,),
        )
        try:
            await self._ask_owner(told)
        except Refused as refused:
            raise RenewalRefused(refused.message) from refused
        return issued.pem

    def _know(self, one: IssuedCertificate) -> None:
        self._by_host.setdefault(one.host, []).append(one)
        self._by_key[one.key_digest] = one

    def _revoke(self, record: HostRecord) -> None:
        if record.state is not HostState.REVOKED:
            return
        serials = [one.serial for one in self._by_host.get(record.id, ())]
        try:
            self._authority.revoke(serials)
        except OSError as problem:
            # What is stored of the host refuses it all the same, one step later.
            self._log(f"the list of revoked certificates was not written: {problem}")


_JOIN_CODES: Mapping[str, str] = {
    "lifecycle_conflict": "host_name_taken",
    "host_not_revoked": "host_not_revoked",
    "forbidden": "invitation_used",
    "not_found": "invitation_unknown",
}


def _start_empty(invitation: Invitation) -> str:
    option = " --recover" if invitation.recover is not None else ""
    return (
        "Move its `identity` folder away, and run `capyctl join host"
        f"{option}` again with the same join file"
    )

"""What changes of machines come to: refused, or accepted with what is stored and told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import attrs

from capyctl.domain.certificates import IssuedCertificate
from capyctl.domain.errors import Refused
from capyctl.domain.events import NewEvent
from capyctl.domain.hosts import HostRecord, HostState, Invitation
from capyctl.domain.ids import HostId
from capyctl.domain.receipts import host_receipt, invitation_receipt
from capyctl.messages.hosts import ActOnHost, DrainHost, EnrolHost, RevokeHost

HostPut: TypeAlias = HostRecord | Invitation | IssuedCertificate


@attrs.frozen(kw_only=True)
class HostDecision:
    """What is committed, with the receipt where there is one."""

    puts: tuple[HostPut, ...]
    events: tuple[NewEvent, ...] = ()
    response: str = ""
    """The receipt's JSON; empty for what no client asked for."""
    record: HostRecord | None = None
    """The host as it is afterwards."""


def host_event(kind: str, record: HostRecord) -> NewEvent:
    return NewEvent(
        kind=kind,
        deployment=None,
        operation=None,
        payload={"host_id": record.id, "host_name": record.name},
    )


def decide_host(record: HostRecord | None, change: ActOnHost, *, now_ms: int) -> HostDecision:
    """Rule on a drain, its end, or a revocation.

    1. Unknown: not_found. 2. It is so already: joined, nothing changes.
    3. A revoked host is neither drained nor used: lifecycle_conflict.

    Raises:
        Refused: nothing changes.
    """
    if record is None:
        raise Refused("not_found", f"There is no host {change.host}")
    revoked = record.state is HostState.REVOKED
    if isinstance(change, RevokeHost):
        if revoked:
            return _joined(record, "revoke")
        after = attrs.evolve(record, state=HostState.REVOKED, revoked_at_ms=now_ms)
        return _accepted(after, "revoke", "host_revoked")
    if revoked:
        raise Refused(
            "lifecycle_conflict",
            f"{record.name} is revoked; let it in again with `capyctl invite host {record.name} "
            "--recover`",
        )
    drains = isinstance(change, DrainHost)
    action = "drain" if drains else "undrain"
    if record.draining is drains:
        return _joined(record, action)
    after = attrs.evolve(record, draining=drains)
    return _accepted(after, action, "host_draining" if drains else "host_undrained")


def _joined(record: HostRecord, action: str) -> HostDecision:
    return HostDecision(
        puts=(), response=host_receipt(record, action=action, joined=True), record=record
    )


def _accepted(after: HostRecord, action: str, kind: str) -> HostDecision:
    return HostDecision(
        puts=(after,),
        events=(host_event(kind, after),),
        response=host_receipt(after, action=action, joined=False),
        record=after,
    )


def host_named(hosts: Iterable[HostRecord], name: str) -> HostRecord | None:
    """Of several that had the name, the one that is not revoked; else the one revoked last."""
    found = [record for record in hosts if record.name == name]
    return max(
        found,
        key=lambda one: (one.state is HostState.ENROLLED, one.revoked_at_ms or 0),
        default=None,
    )


def invited(hosts: Iterable[HostRecord], invitation: Invitation) -> HostDecision:
    """Store an invitation.

    1. A new host's name must be free among those that are not revoked.
    2. Only a revoked host is recovered.

    Raises:
        Refused: ``lifecycle_conflict``, ``host_not_revoked`` or ``not_found``.
    """
    known = host_named(hosts, invitation.host_name)
    name = invitation.host_name
    if invitation.recover is None:
        if known is not None and known.state is HostState.ENROLLED:
            raise Refused(
                "lifecycle_conflict",
                f"A host named {name} is enrolled already; choose another name, or revoke it first",
            )
        kind = "host_invited"
    else:
        if known is None or known.id != invitation.recover:
            raise Refused("not_found", f"There is no host {name}")
        if known.state is not HostState.REVOKED:
            raise Refused(
                "host_not_revoked",
                f"{name} is not revoked: only a revoked host is recovered. Revoke it first if its "
                "key is lost",
            )
        kind = "host_recovery_invited"
    told = NewEvent(
        kind=kind,
        deployment=None,
        operation=None,
        payload={
            "host_id": invitation.recover,
            "host_name": name,
            "invitation_id": invitation.id,
            "expires_at_ms": str(invitation.expires_at_ms),
        },
    )
    return HostDecision(puts=(invitation,), events=(told,), response=invitation_receipt(invitation))


def enrolled(
    hosts: Mapping[HostId, HostRecord],
    invitation: Invitation | None,
    change: EnrolHost,
    *,
    now_ms: int,
) -> HostDecision:
    """Let a machine in. The invitation is used up in the same change.

    1. Unknown, over, used by another key, or for another name: refused.
    2. The same machine asks again: its record as it is, nothing changes.
    3. A new host under a name that was taken meanwhile: refused.
    4. A recovered one keeps its id and all that is on record of it, under its fresh certificate.

    Raises:
        Refused: ``not_found``, ``forbidden``, ``lifecycle_conflict`` or ``host_not_revoked``.
    """
    fresh = change.host
    if invitation is None:
        raise Refused("not_found", "There is no such invitation")
    if invitation.used_at_ms is not None:
        known = None if invitation.host is None else hosts.get(invitation.host)
        if known is not None and invitation.key_digest == change.key_digest is not None:
            return HostDecision(puts=(), record=known)
        raise Refused("forbidden", "The invitation was used already; ask for another one")
    if now_ms >= invitation.expires_at_ms:
        raise Refused("forbidden", "The invitation has expired; ask for another one")
    if fresh.name != invitation.host_name:
        raise Refused("forbidden", f"The invitation is for a host named {invitation.host_name}")
    kind, after = "host_enrolled", fresh
    if invitation.recover is not None:
        before = hosts.get(invitation.recover)
        if before is None or before.state is not HostState.REVOKED:
            raise Refused("host_not_revoked", f"{fresh.name} is not revoked any more")
        kind = "host_recovered"
        after = attrs.evolve(
            before,
            state=HostState.ENROLLED,
            certificates=fresh.certificates,
            revoked_at_ms=None,
        )
    known = host_named(hosts.values(), after.name)
    if known is not None and known.id != after.id and known.state is HostState.ENROLLED:
        raise Refused("lifecycle_conflict", f"A host named {after.name} is enrolled already")
    used = attrs.evolve(invitation, used_at_ms=now_ms, host=after.id, key_digest=change.key_digest)
    return HostDecision(
        puts=(after, used, *change.issued),
        events=(host_event(kind, after),),
        record=after,
    )

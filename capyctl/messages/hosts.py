"""Everything the hosts actor may be told: the one owner of what is on record of machines."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from capyctl.domain.certificates import IssuedCertificate
from capyctl.domain.hosts import Compatibility, HostPublication, HostRecord, Invitation
from capyctl.domain.ids import HostId
from capyctl.messages.deployment import ReceiptKey


@attrs.frozen(kw_only=True)
class HostOnline:
    """A host's session is live: it has ended what nobody knows of. From: the link.

    Comes again, not fresh, when a live host publishes something else. What runs there the host
    itself tells by now (`contracts.host.Host.is_running`).
    """

    host: HostId
    publication: HostPublication
    fresh: bool
    """The first session since we began or lost it, or one of another process of the host."""
    compatibility: Compatibility = Compatibility.SUPPORTED


@attrs.frozen(kw_only=True)
class HostSilent:
    """Nothing was heard of a host for `heartbeat_suspend_after`. From: the link."""

    host: HostId


@attrs.frozen(kw_only=True)
class HostGone:
    """Nothing was heard of a host for `heartbeat_lost_after`. From: the link."""

    host: HostId


@attrs.frozen(kw_only=True)
class InviteHost:
    """Let a machine in, once. From: the API, as an ask; answered with the receipt's JSON."""

    invitation: Invitation
    receipt: ReceiptKey


@attrs.frozen(kw_only=True)
class EnrolHost:
    """An invitation was redeemed. From: enrolment, as an ask; answered once it is on record.

    With ``invitation.recover``, ``host`` is the revoked machine with its fresh certificate.
    """

    invitation: str
    host: HostRecord
    key_digest: str | None = None
    """Of the public key it was redeemed with: that machine may ask again."""
    issued: tuple[IssuedCertificate, ...] = ()
    """Stored in the same change."""


@attrs.frozen(kw_only=True)
class RenewHost:
    """Another certificate is good from now on. From: the link, as an ask."""

    host: HostId
    certificates: tuple[str, ...]
    """All that are good."""
    issued: tuple[IssuedCertificate, ...] = ()
    """Stored in the same change."""


@attrs.frozen(kw_only=True)
class DrainHost:
    """Nothing new there; what runs is stopped. From: the API, as an ask, as an action is."""

    host: HostId
    receipt: ReceiptKey


@attrs.frozen(kw_only=True)
class UndrainHost:
    """It may be used again. From: the API, as an ask."""

    host: HostId
    receipt: ReceiptKey


@attrs.frozen(kw_only=True)
class RevokeHost:
    """Its certificates are no good any more; its engines run on and stay charged.

    From: the API, as an ask.
    """

    host: HostId
    receipt: ReceiptKey


ActOnHost: TypeAlias = DrainHost | UndrainHost | RevokeHost
HostsMessage: TypeAlias = (
    HostOnline
    | HostSilent
    | HostGone
    | InviteHost
    | EnrolHost
    | RenewHost
    | DrainHost
    | UndrainHost
    | RevokeHost
)

"""Whether anything new may begin on a host, and what is said where it may not."""

from __future__ import annotations

from capyctl.control.sessions import Session, SessionState
from capyctl.domain.hosts import Compatibility, HostRecord, HostState
from capyctl.domain.ids import HostId
from capyctl.messages.placement import HostEligible


def why_not_eligible(record: HostRecord, session: Session | None) -> str | None:
    """In words, the first that applies; None for a host that may be used.

    1. It was revoked. 2. It never connected. 3. It is away. 4. It is being drained.
    5. Its release is too old, or newer than ours.
    """
    if record.state is HostState.REVOKED:
        return "revoked"
    if record.publication is None:
        return "it has not connected yet"
    state = SessionState.ONLINE if session is None else session.state
    if state is SessionState.LOST:
        return "offline"
    if state is SessionState.AWAITED:
        return "it has not come back yet"
    if state is SessionState.SUSPENDED:
        return "it is silent"
    if record.draining:
        return "draining"
    match SUPPORTED if session is None else session.compatibility:
        case Compatibility.UPGRADE_REQUIRED:
            return f"upgrade_required: it runs capyctl {record.publication.version}"
        case Compatibility.SERVER_BEHIND:
            return f"it runs capyctl {record.publication.version}, newer than this server"
    return None


def eligibility(record: HostRecord, session: Session | None) -> HostEligible:
    """What placement is told of it. Where only the release is in the way, nothing parks either."""
    why = why_not_eligible(record, session)
    fits = (SUPPORTED if session is None else session.compatibility) in _PARKS
    return HostEligible(host=record.id, eligible=why is None, why=why or "", parks=fits)


def own_eligibility(host: HostId, *, drained: bool) -> HostEligible:
    """The same of the own machine of a standalone daemon, which is always there."""
    return HostEligible(host=host, eligible=not drained, why=OWN_DRAINED if drained else "")


OWN_DRAINED = "draining; `capyctl undrain standalone` lets it be used again"
SUPPORTED = Compatibility.SUPPORTED
_PARKS = frozenset({SUPPORTED, Compatibility.UPGRADE_RECOMMENDED})

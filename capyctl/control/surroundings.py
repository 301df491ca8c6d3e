"""What every control actor is given of the world, and small steps they all take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import attrs

from actors import ActorGone, MailboxFull, Ref
from capyctl.contracts.clock import Clock, Ids
from capyctl.contracts.host import Host
from capyctl.contracts.store import Change, Store, StoreBroken
from capyctl.control.directory import Directory
from capyctl.control.sessions import Sessions
from capyctl.domain.ids import HostId
from capyctl.machines.table import Moment

Tell = Callable[[Ref[Any], Any], None]
"""How a body sends: production tells; a seeded world puts a courier between."""


def tell_now(ref: Ref[Any], message: Any) -> None:
    """Tell, unless the receiver has gone: then the message has no meaning any more.

    Raises:
        MailboxFull: the sizes in `domain` were wrong; a bug, never shed silently.
    """
    try:
        ref.tell(message)
    except ActorGone:
        return
    except MailboxFull:
        raise


@attrs.frozen(kw_only=True)
class World:
    """The outside, through its contracts."""

    store: Store
    clock: Clock
    ids: Ids
    hosts: Mapping[HostId, Host]
    """Live: hosts come into it when they first publish, and stay while they are enrolled."""
    directory: Directory
    session_epoch: int
    log: Callable[..., None]
    """``log(event, **fields)``."""
    tell: Tell = tell_now
    drain_s: float = 30.0
    """How long requests may take to finish before their instance is parked or stopped."""
    parked_growth_limit: str = "auto"
    """`parked_growth_limit`: ``auto``, ``off``, a percentage, or a size."""
    sessions: Sessions = attrs.field(factory=Sessions)
    """How hosts that are not this machine are reached now."""

    async def landed(self) -> None:
        """Wait for what was handed to the store before: a change of an actor that failed may
        still be on its way to the disk, and its next incarnation goes by what is recorded.
        """
        with suppress(StoreBroken):
            await self.store.commit(Change())

    def growth_limit_on(self, host: HostId) -> str:
        """`parked_growth_limit` of one of several machines, as it publishes it."""
        record = self.directory.hosts.get(host)
        if record is None or record.publication is None:
            return self.parked_growth_limit
        return record.publication.parked_growth_limit

    def moment(self) -> Moment:
        return Moment(
            now_ms=self.clock.wall_ms(), session_epoch=self.session_epoch, fresh=self.ids.ulid
        )

"""Machines as GET hosts shows them: what is on record, what is charged, and what was seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from capyctl import __version__
from capyctl.control.books import Books
from capyctl.control.eligibility import OWN_DRAINED, why_not_eligible
from capyctl.control.sessions import Session, SessionState
from capyctl.control.surroundings import World
from capyctl.domain.devices import MemoryDomain
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import (
    Compatibility,
    HostPublication,
    HostRecord,
    HostState,
    compatibility,
)
from capyctl.domain.ids import DomainName, HostId
from capyctl.machines.deployment import Picture
from capyctl.machines.host_changes import host_named
from capyctl.machines.observed import observed_instance
from capyctl.telemetry.hosts import HostedInstance, HostParts, HostUse, render_host

_SHOWN = {
    SessionState.ONLINE: "online",
    SessionState.SUSPENDED: "suspended",
    SessionState.AWAITED: "offline",
    SessionState.LOST: "offline",
}


Hosted: TypeAlias = dict[HostId, list[HostedInstance]]


@attrs.frozen(kw_only=True)
class OwnHost:
    """The machine inside a standalone daemon."""

    id: HostId
    publication: Callable[[], HostPublication]


@attrs.frozen(kw_only=True, eq=False)
class HostsView:
    """Reads of memory only: nothing is asked of a host."""

    world: World
    books: Books
    own: OwnHost | None = None
    rival: Callable[[HostId], str | None] = lambda _: None
    """As `link.server.LinkServer.rival`."""

    def every(self) -> dict[str, Any]:
        """The body of GET hosts, sorted by name."""
        hosted = self._hosted()
        records = self.world.directory.hosts.values()
        shown = [render_host(self._of_record(record, hosted)) for record in records]
        if self.own is not None:
            shown.append(render_host(self._of_own(self.own, hosted)))
        return {
            "api_version": "1",
            "hosts": sorted(shown, key=lambda host: (host["name"], host["host_id"])),
            "observed_at_ms": str(self.world.clock.wall_ms()),
            "server_version": __version__,
        }

    def one(self, id_or_name: str) -> dict[str, Any]:
        """The body of GET hosts/{id or name}. Raises Refused(not_found)."""
        if self.own is not None and self.own.id == id_or_name:
            parts = self._of_own(self.own, self._hosted(self.own.id))
        else:
            record = self.find(id_or_name)
            parts = self._of_record(record, self._hosted(record.id))
        return {"api_version": "1", **render_host(parts)}

    def find(self, id_or_name: str) -> HostRecord:
        """A machine that is on record. Raises Refused(not_found)."""
        hosts = self.world.directory.hosts
        if self.own is not None and id_or_name == self.own.id:
            return self.world.directory.own_record(self.own.id)
        found = hosts.get(HostId(id_or_name)) or host_named(hosts.values(), id_or_name)
        if found is None:
            raise Refused("not_found", f"There is no host {id_or_name}")
        return found

    def _of_own(self, own: OwnHost, hosted: Hosted) -> HostParts:
        publication = own.publication()
        draining = own.id in self.world.directory.draining
        return HostParts(
            id=own.id,
            name=own.id,
            state="online",
            ineligible=OWN_DRAINED if draining else None,
            draining=draining,
            publication=publication,
            now_ms=self.world.clock.wall_ms(),
            use=self._use(own.id, publication),
            sample_age_s=self._sample_age_s(own.id),
            instances=tuple(hosted.get(own.id, ())),
        )

    def _of_record(self, record: HostRecord, hosted: Hosted) -> HostParts:
        session = self.world.sessions.of(record.id)
        return HostParts(
            id=record.id,
            name=record.name,
            state=self._state(record, session),
            state_s=self._state_s(session),
            ineligible=why_not_eligible(record, session),
            draining=record.draining,
            compatibility=_compatibility(record, session),
            publication=record.publication,
            enrolled_at_ms=record.enrolled_at_ms,
            revoked_at_ms=record.revoked_at_ms,
            certificate_expires_at_ms=self.world.directory.certificates_end_at_ms.get(record.id),
            now_ms=self.world.clock.wall_ms(),
            use={} if record.publication is None else self._use(record.id, record.publication),
            sample_age_s=self._sample_age_s(record.id),
            instances=tuple(hosted.get(record.id, ())),
            rival=self.rival(record.id),
        )

    def _state(self, record: HostRecord, session: Session | None) -> str:
        if record.state is HostState.REVOKED:
            return "revoked"
        return "offline" if session is None else _SHOWN[session.state]

    def _state_s(self, session: Session | None) -> float | None:
        if session is None:
            return None
        return self.world.clock.monotonic_s() - session.since_s

    def _sample_age_s(self, host: HostId) -> float | None:
        looked = self.world.sessions.memory.get(host)
        return None if looked is None else self.world.clock.monotonic_s() - looked.at_s

    def _use(self, host: HostId, publication: HostPublication) -> dict[DomainName, HostUse]:
        return {domain.name: self._domain(host, domain) for domain in publication.shape.domains}

    def _domain(self, host: HostId, domain: MemoryDomain) -> HostUse:
        pool = (host, domain.name)
        looked = self.world.sessions.memory.get(host)
        return HostUse(
            charged_bytes=self.books.ledger.charged_bytes(pool),
            parked_bytes=self.books.ledger.parked_bytes(pool),
            outside_bytes=self.books.foreign.get(pool, 0),
            available_bytes=None if looked is None else looked.available_bytes.get(domain.name),
        )

    def _hosted(self, only: HostId | None = None) -> Hosted:
        """What holds memory on each host, by name; of one host where that is given."""
        directory = self.world.directory
        found: Hosted = {}
        for id, mine in directory.instances.items():
            deployment = directory.deployments.get(id)
            holding = [
                (one, one.held.candidate.host)
                for one in mine.values()
                if one.held is not None and only in (None, one.held.candidate.host)
            ]
            if deployment is None or not holding:
                continue
            operations = directory.open_operations.get(id, {})
            picture = Picture(deployment=deployment, instances=mine, operations=operations)
            for one, host in holding:
                shown = HostedInstance(
                    deployment=id,
                    name=deployment.spec.name,
                    index=one.id.index,
                    observed=observed_instance(one, picture.accepted(one)),
                    profile=deployment.spec.profile,
                )
                found.setdefault(host, []).append(shown)
        for there in found.values():
            there.sort(key=lambda one: (one.name, one.index))
        return found


_MET = (SessionState.ONLINE, SessionState.SUSPENDED)


def _compatibility(record: HostRecord, session: Session | None) -> Compatibility:
    """As it was met, or else by the release that it had when it was there last."""
    if session is not None and session.state in _MET:
        return session.compatibility
    published = record.publication
    return (
        Compatibility.SUPPORTED
        if published is None
        else compatibility(published.version, __version__)
    )

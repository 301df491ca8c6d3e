"""All that placement looks at for one request: who is where, what may be moved, what is closed."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from capyctl.control.books import Books, Turn
from capyctl.control.directory import Directory
from capyctl.control.surroundings import World
from capyctl.domain.ids import HostId, InstanceId
from capyctl.domain.specs import Candidate, Charges, HostRefusal, Phase
from capyctl.ledger.ledger import Entry, Ledger
from capyctl.ledger.places import Hosts, Wanted
from capyctl.ledger.plan import NoRoom, Plan, plan
from capyctl.ledger.reasons import why_no_room, why_not_parked
from capyctl.ledger.victims import NO_PARK, Occupant, full_name, parked_count, parked_shortage
from capyctl.messages import placement as m


@attrs.frozen(eq=False)
class Outlook:
    """Reads the books, the directory and the gates as they are now; changes nothing."""

    _books: Books
    _world: World

    # -- who and where -----------------------------------------------------------------------

    def wanted(
        self, instance: InstanceId, phase: Phase, candidates: tuple[Candidate, ...]
    ) -> Wanted:
        """The request, with what its deployment says of places and where it was before."""
        directory = self._world.directory
        one = directory.instance(instance)
        made = Wanted(
            instance=instance,
            phase=phase,
            candidates=candidates,
            last_host=one.last_host,
            last_gpu=one.last_gpu,
        )
        deployment = directory.deployments.get(instance.deployment)
        if deployment is None:
            return made
        spec = deployment.spec
        return attrs.evolve(made, strategy=spec.strategy, max_per_host=spec.max_per_host)

    def occupants(self, hosts: Iterable[HostId]) -> dict[InstanceId, Occupant]:
        """Who holds memory on these machines, and is known."""
        ledger, occupancy = self._books.ledger, self._books.occupancy
        return {
            id: self._occupant(id, occupancy[id])
            for host in dict.fromkeys(hosts)
            for id in ledger.entries_on(host)
            if id in occupancy
        }

    def _occupant(self, id: InstanceId, known: m.Occupy) -> Occupant:
        directory = self._world.directory
        gate = directory.gate(id)
        one = directory.instance(id)
        phases = None if one.held is None else one.held.candidate.charges
        parked = {} if phases is None else dict(phases.parked)
        if one.held is not None and one.held.parked is not None:
            parked = {**parked, **one.held.parked}
        # Someone inside is in use right now: later than any that left.
        last_used_s = gate.last_used_s or 0.0
        if gate.lease_count:
            last_used_s = self._world.clock.monotonic_s()
        return Occupant(
            instance=id,
            state=known.state if known.state == one.state.value else "moving",
            parks=known.parks,
            protected=known.protected,
            waiting=directory.admission(id.deployment).waiting_count > 0,
            ready_elsewhere=known.ready_elsewhere,
            last_used_s=last_used_s,
            parked=parked,
            grown=known.grown,
        )

    def hosts(self, mine: Turn | None) -> Hosts:
        """What is known of machines for a request that has ``mine``, if any, for a turn."""
        others = [turn for turn in self._books.turns.values() if turn is not mine]
        return Hosts(
            closed=self._books.closed,
            promised={t.switch.host: t.entry for t in others if not self._granted(t)},
            switching=tuple(turn.switch.host for turn in others),
            parked_max=self._books.parked_max,
        )

    def _granted(self, turn: Turn) -> bool:
        entry = self._books.ledger.entries.get(turn.switch.target)
        return entry is not None and entry.ask == turn.switch.ask

    def plan(self, wanted: Wanted, *, may_evict: bool, mine: Turn | None = None) -> Plan:
        """On the live ledger."""
        return plan(
            self._books.ledger,
            wanted,
            self.occupants(c.host for c in wanted.candidates),
            may_evict=may_evict,
            foreign=self._books.foreign,
            hosts=self.hosts(mine),
        )

    def waits_for_a_turn(self, wanted: Wanted) -> bool:
        """It would fit once others had moved on a machine where a switch is ending."""
        hosts = self.hosts(None)
        ending = {h for h in hosts.switching if h not in hosts.promised}
        if not any(c.host in ending for c in wanted.candidates):
            return False
        found = plan(
            self._books.ledger,
            wanted,
            self.occupants(c.host for c in wanted.candidates),
            may_evict=True,
            foreign=self._books.foreign,
            hosts=attrs.evolve(hosts, switching=()),
        )
        return not isinstance(found, NoRoom)

    def trial(self) -> Ledger:
        """The live ledger, to book on and throw away."""
        return self._books.ledger

    # -- parks -------------------------------------------------------------------------------

    def why_no_park(self, entry: Entry, parked: Charges) -> tuple[str, str] | None:
        """Why it may not park where it is, with figures and in short; None when it may."""
        books, host = self._books, entry.host
        if host in books.unparkable:
            why = books.closed.get(host, "its release does not fit this server's")
            return f"nothing may be parked on {self.machine(host)}: {why}", "upgrade required"
        count = parked_count(books.ledger, host, without=entry.instance)
        most = books.parked_max.get(host)
        if most is not None and count >= most:
            where = self.machine(host)
            why = f"{count} models are parked on {where}, as many as max_parked allows ({most})"
            return f"{why}; stop a parked model, or stop this one", NO_PARK
        short = parked_shortage(books.ledger, entry, parked)
        if short is None:
            return None
        return why_not_parked(short, self.name), full_name(short)

    # -- words -------------------------------------------------------------------------------

    def why(self, found: NoRoom, instance: InstanceId) -> str:
        """Why there is no room for it, with figures, machine by machine where there are several."""
        return why_no_room(found, self.name, machines=self.machine, refused=self._refused(instance))

    def _refused(self, instance: InstanceId) -> tuple[HostRefusal, ...]:
        deployment = self._world.directory.deployments.get(instance.deployment)
        return () if deployment is None else deployment.refused

    def name(self, instance: InstanceId) -> str:
        """What people call an instance: its deployment, and its index where it has several."""
        return name_of(instance, self._world.directory)

    def machine(self, host: HostId) -> str:
        """What people call a machine."""
        record = self._world.directory.hosts.get(host)
        return host if record is None else record.name

    def only_silent(self, found: NoRoom) -> bool:
        """A machine that could run it has only just fallen silent, or is about to come back."""
        sessions = self._world.sessions
        return any(sessions.may_return_soon(host) for host, _ in found.closed)


def name_of(instance: InstanceId, directory: Directory) -> str:
    """Its deployment, and its index where that has several."""
    deployment = directory.deployments.get(instance.deployment)
    if deployment is None:
        return str(instance)
    many = deployment.spec.instances > 1
    return f"{deployment.spec.name}/{instance.index}" if many else deployment.spec.name

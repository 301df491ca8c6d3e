"""What placement keeps: the ledger, the line of requests, each host's turn. Outlives its actor."""

from __future__ import annotations

import attrs

from capyctl.control.directory import Directory
from capyctl.control.occupancy import occupancies
from capyctl.domain.devices import MachineShape, MemorySample
from capyctl.domain.ids import HostId, InstanceId, SwitchId
from capyctl.domain.specs import Phase
from capyctl.ledger.ledger import (
    Entry,
    Foreign,
    Ledger,
    charge,
    foreign_since,
    free,
    with_domains,
    withdraw,
)
from capyctl.machines.deployment import Picture
from capyctl.machines.instance import Instance, InstanceState
from capyctl.machines.parking import parked_charges
from capyctl.machines.switch import Switch
from capyctl.messages.instance import Cause
from capyctl.messages.placement import (
    AskPark,
    Charge,
    EvictionFailed,
    Free,
    HostEligible,
    Occupy,
    Reserve,
    Withdraw,
)

_IN_LINE = {InstanceState.QUEUED: Phase.COLD, InstanceState.WAKE_QUEUED: Phase.WAKE}


@attrs.define(eq=False)
class Waiting:
    """One request in line."""

    reserve: Reserve
    rounds_count: int = 0
    told: str | None = None
    switch: SwitchId | None = None
    """The switch that was opened for it."""


@attrs.define(eq=False)
class Turn:
    """A host's switch under way, and when it began."""

    switch: Switch
    opened_at_s: float
    entry: Entry
    """What its target will be charged."""

    def concerns(self, told: Withdraw | Charge | Free | EvictionFailed | Occupy) -> bool:
        """It is about the one that the switch is for, or one that is to make way."""
        return told.instance == self.switch.target or told.instance in self.switch.left


@attrs.define(eq=False)
class Books:
    """State of the placement actor. A restart of the actor goes on with it."""

    ledger: Ledger
    occupancy: dict[InstanceId, Occupy] = attrs.field(factory=dict)
    line: dict[str, Waiting] = attrs.field(factory=dict)
    turns: dict[HostId, Turn] = attrs.field(factory=dict)
    foreign: Foreign = attrs.field(factory=dict)
    """What others hold on the devices, as far as was seen."""
    released_at_s: dict[HostId, float] = attrs.field(factory=dict)
    closed: dict[HostId, str] = attrs.field(factory=dict)
    """Machines on which nothing may begin now, and why."""
    parked_max: dict[HostId, int] = attrs.field(factory=dict)
    """Most parked instances, of machines that have such a bound."""
    unparkable: set[HostId] = attrs.field(factory=set)
    """Machines on which nothing may be parked now."""

    @classmethod
    def from_directory(cls, shapes: tuple[MachineShape, ...], directory: Directory) -> Books:
        """Books of a daemon that begins: what the stored instances hold is charged, wherever.

        Machines that come and go are closed until it is told that they are here.
        """
        stored = [one for mine in directory.instances.values() for one in mine.values()]
        entries = {one.id: entry for one in stored if (entry := entry_of(one)) is not None}
        ledger = Ledger(pools={}, entries=entries)
        for shape in shapes:
            ledger = with_domains(ledger, shape.host, shape.domains)
        return cls(ledger=ledger, closed=dict.fromkeys(directory.hosts, "offline"))

    def publish(self, host: HostId, shape: MachineShape, parked_max: int | None) -> None:
        """The machine's memory counts from now on, and what is held there stays charged."""
        self.ledger = with_domains(self.ledger, host, shape.domains)
        if parked_max is None:
            self.parked_max.pop(host, None)
        else:
            self.parked_max[host] = parked_max

    def let(self, told: HostEligible) -> None:
        """Whether anything may begin on a machine from now on."""
        if told.eligible:
            self.closed.pop(told.host, None)
        else:
            self.closed[told.host] = told.why
        if told.parks:
            self.unparkable.discard(told.host)
        else:
            self.unparkable.add(told.host)

    def look(self, host: HostId, sample: MemorySample) -> bool:
        """Take in a look at memory; one from before the last release tells nothing.

        Whether what others hold beyond the free reserves has changed.
        """
        if sample.at_s <= self.released_at_s.get(host, -1.0):
            return False
        before = self.excess_bytes(host)
        self.foreign = foreign_since(self.ledger, {host: sample}, self.foreign)
        return self.excess_bytes(host) != before

    def excess_bytes(self, host: HostId) -> int:
        """What programs that are not ours hold of a machine's devices beyond the reserves."""
        return sum(
            max(0, self.foreign.get((host, name), 0) - domain.free_reserve_bytes)
            for name, domain in self.ledger.domains_of(host).items()
        )

    def turn_of(self, ask: str) -> Turn | None:
        return next((t for t in self.turns.values() if t.switch.ask == ask), None)

    def reconcile(self, directory: Directory) -> None:
        """After a restart of the actor: messages were lost, the instances' records were not.

        1. A charge whose instance holds nothing any more, or never took it, goes.
        2. A charge follows the phase that its instance's record shows.
        3. A request that its instance still has is in line, as its record has it; no other is.
        4. Who may be moved is what the records show: one that became ready meanwhile may be.
        """
        self.occupancy = {
            told.instance: told
            for id, deployment in directory.deployments.items()
            for told in occupancies(
                Picture(deployment=deployment, instances=directory.instances.get(id, {}))
            )
        }
        known = {one.id: one for mine in directory.instances.values() for one in mine.values()}
        for id, entry in list(self.ledger.entries.items()):
            self.ledger = _reconciled(self.ledger, entry, known.get(id))
        asks = {one.ask: one for one in known.values() if one.ask and one.state in _IN_LINE}
        self.line = {ask: w for ask, w in self.line.items() if ask in asks}
        granted = {entry.ask for entry in self.ledger.entries.values()}
        for ask, one in asks.items():
            if ask in self.line:
                self.line[ask].reserve = reserve_for(one)
            elif ask not in granted:
                self.line[ask] = Waiting(reserve=reserve_for(one))


def _reconciled(ledger: Ledger, entry: Entry, one: Instance | None) -> Ledger:
    if one is None:
        return free(ledger, entry.instance)
    if entry.ask is not None and one.ask == entry.ask:
        return ledger  # granted; the answer is on its way
    if one.held is None:
        return free(ledger, entry.instance)
    if entry.ask is not None and entry.before is not None and one.held.phase is not entry.phase:
        # Its record is past the wake, or from before it: either way what it held then is known.
        ledger = withdraw(ledger, entry.instance, entry.ask)
    return charge(ledger, entry.instance, one.held.phase, one.held.charges)


def park_questions(directory: Directory) -> list[AskPark]:
    """After a restart of the actor: parks whose question went down with it."""
    return [
        AskPark(ask=one.ask, instance=one.id, parked=parked_charges(one, {}))
        for mine in directory.instances.values()
        for one in mine.values()
        if one.state is InstanceState.PARK_DRAIN and one.ask is not None
    ]


def reserve_for(one: Instance) -> Reserve:
    """The request of an instance that is in line, from its record."""
    assert one.order is not None
    assert one.ask is not None
    phase = _IN_LINE[one.state]
    candidates = one.order.candidates
    if phase is Phase.WAKE and one.held is not None:
        candidates = (one.held.candidate,)
    return Reserve(
        ask=one.ask,
        instance=one.id,
        phase=phase,
        candidates=candidates,
        may_evict=one.order.may_evict,
        for_request=one.order.cause is Cause.REQUEST,
        switch=one.order.switch,
    )


def entry_of(one: Instance) -> Entry | None:
    """What a stored instance holds; None when that is nothing."""
    if one.held is None:
        return None
    candidate = one.held.candidate
    return Entry(
        instance=one.id,
        host=candidate.host,
        phase=one.held.phase,
        charges=one.held.charges,
        gpu=candidate.gpu,
        exclusive=candidate.exclusive,
    )

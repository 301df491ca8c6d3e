"""One deployment's running requests: one counter, one queue, its instances' gates.

Entering, leaving and queueing are single steps without an await, so no arrival overtakes a
waiter, and no request enters an instance that has begun to drain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Protocol

import attrs

from capyctl.domain.errors import InferenceRefusal
from capyctl.domain.ids import DeploymentId
from capyctl.domain.units import MIB
from capyctl.gates.gate import Gate
from capyctl.gates.lease import Lease

RUNNING_MAX = 32
PENDING_MAX = 64
NO_SAMPLE_COUNTS_S = math.inf
"""The time to give where none is known: every load sample counts as too old."""


class Waiter(Protocol):
    """A request that waits. It is answered once: by a lease, a refusal, or its own withdrawal."""

    since_s: float
    body_bytes: int

    def grant(self, lease: Lease) -> None:
        """It may go. Called in the middle of a step: note it, wake the task, return."""

    def refuse(self, refusal: InferenceRefusal) -> None:
        """It will not be served. As `grant`."""


class NotAdmitted(Exception):
    """The request neither enters nor waits; it is answered with ``refusal``."""

    def __init__(self, refusal: InferenceRefusal, *, nudge_due: bool = False) -> None:
        super().__init__(refusal.code, refusal.message)
        self.refusal = refusal
        self.nudge_due = nudge_due
        """True where the deployment's actor is to be told all the same (no queue, but demand)."""


@attrs.define(kw_only=True, eq=False)
class QueueBounds:
    """What all deployments share: waiting requests, their bytes, and running requests."""

    total_max: int = 256
    bytes_max: int = 64 * MIB
    leases_max: int = 4096
    waiting_count: int = 0
    waiting_bytes: int = 0
    lease_count: int = 0
    _starved: dict[Admission, None] = attrs.field(factory=dict, repr=False, init=False)

    def note_starved(self, admission: Admission) -> None:
        """Its queue waits for a lease of any deployment."""
        self._starved[admission] = None

    def forget_starved(self, admission: Admission) -> None:
        self._starved.pop(admission, None)

    def give_back(self, count: int, now_s: float) -> None:
        """Leases ended: serve the queues that had none to take, longest starved first."""
        self.lease_count -= count
        assert self.lease_count >= 0, "more leases were given back than taken"
        while self._starved and self.lease_count < self.leases_max:
            admission = next(iter(self._starved))
            del self._starved[admission]
            admission.serve_waiting(now_s)


class Admission:
    """Who may run and who waits, for one deployment. Outlives restarts of its actors."""

    __slots__ = (
        "_last_index",
        "_nudged",
        "_waiters",
        "bounds",
        "deployment",
        "gates",
        "on_stranded",
        "pending_max",
        "refusal",
        "running_count",
        "running_max",
    )

    def __init__(
        self,
        deployment: DeploymentId,
        running_max: int = RUNNING_MAX,
        pending_max: int = PENDING_MAX,
        bounds: QueueBounds | None = None,
    ) -> None:
        self.deployment = deployment
        self.running_max = running_max
        """Requests inside all gates together; may be changed at any time, then `serve_waiting`."""
        self.pending_max = pending_max
        """Requests that may wait; 0 lets none wait."""
        self.bounds = QueueBounds() if bounds is None else bounds
        self.gates: dict[int, Gate] = {}
        self.running_count = 0
        """Slots taken, unproven ones included."""
        self.refusal: InferenceRefusal | None = None
        """Set by the deployment's actor while every new request is to be answered with it."""
        self.on_stranded: Callable[[], None] | None = None
        """Called once when the last open gate closes over waiters nobody was nudged about."""
        self._waiters: dict[Waiter, None] = {}
        self._nudged = False
        self._last_index = -1

    def __repr__(self) -> str:
        return (
            f"<Admission {self.deployment} {self.running_count}/{self.running_max} running, "
            f"{len(self._waiters)}/{self.pending_max} waiting>"
        )

    @property
    def waiting_count(self) -> int:
        return len(self._waiters)

    @property
    def oldest_waiting_since_s(self) -> float | None:
        """When the queue's head came; None when nobody waits."""
        for waiter in self._waiters:
            return waiter.since_s
        return None

    @property
    def any_open(self) -> bool:
        return any(gate.is_open for gate in self.gates.values())

    def add_gate(self, gate: Gate) -> None:
        """The gate of one more instance. What is already inside counts."""
        index = gate.instance.index
        assert index not in self.gates, f"{gate.instance} has a gate already"
        self.gates[index] = gate
        self.running_count += gate.held_count
        self.bounds.lease_count += gate.held_count
        gate.attach(self._gate_changed, self._slots_freed)
        self.serve_waiting()

    def remove_gate(self, index: int) -> None:
        """The instance is no more.

        Raises:
            AssertionError: the gate is open or somebody is inside.
        """
        gate = self.gates[index]
        assert not gate.is_open, f"the gate of {gate.instance} is open"
        assert gate.held_count == 0, f"{gate.held_count} requests are inside {gate.instance}"
        del self.gates[index]
        gate.detach()

    def try_enter(self, now_s: float) -> Lease | None:
        """A lease on the least loaded open instance, or None when the request has to wait.

        None also while anybody waits, whatever is free.

        Raises:
            NotAdmitted: the deployment refuses requests.
        """
        if self.refusal is not None:
            raise NotAdmitted(self.refusal)
        if self._waiters:
            return None
        return self._take(now_s)

    def enqueue(self, waiter: Waiter) -> bool:
        """Take the last place of the queue. True when the deployment's actor is to be nudged.

        A nudge is due when no gate is open, once until the actor has called `take_nudge`.
        Call it right after a `try_enter` that returned None, without an await between.

        Raises:
            NotAdmitted: the deployment refuses requests, or a bound of the queue is reached.
        """
        if self.refusal is not None:
            raise NotAdmitted(self.refusal)
        full = self._full(waiter.body_bytes)
        if full is not None:
            refusal = InferenceRefusal(code="queue_full", message=full)
            raise NotAdmitted(refusal, nudge_due=self._nudge_due())
        self._waiters[waiter] = None
        self.bounds.waiting_count += 1
        self.bounds.waiting_bytes += waiter.body_bytes
        if self.bounds.lease_count >= self.bounds.leases_max:
            self.bounds.note_starved(self)
        return self._nudge_due()

    def take_nudge(self) -> None:
        """For the actor, at each nudge and at its own start, before it looks at the queue.

        Arrivals after it nudge again.
        """
        self._nudged = False

    def withdraw(self, waiter: Waiter) -> bool:
        """Give up one place in the queue. False when it was answered before."""
        if waiter not in self._waiters:
            return False
        self._drop(waiter)
        return True

    def leave(self, lease: Lease, now_s: float, *, unproven: bool = False) -> None:
        """Give a lease back, and serve the queue's head from the slot.

        ``unproven``: the engine broke, or has not shown that it stopped working on the
        request. The slot is kept until the gate's `settle_unproven`.

        Raises:
            AssertionError: it was given back before.
        """
        lease.mark_closed()
        gate = lease.gate
        gate.count_out(now_s, unproven=unproven)
        if not unproven:
            self.running_count -= 1
            self.bounds.give_back(1, now_s)
            if self._waiters:
                self.serve_waiting(now_s)
        gate.report_if_empty()

    def move(self, lease: Lease, avoid: Collection[int]) -> Lease | None:
        """Take the lease to another open instance; its slot is kept, so nobody gets in between.

        For a request that no engine has accepted. ``avoid`` are indices that were tried. None
        when no other instance is open: then ``lease`` is still held.
        """
        gate = self._least_loaded(NO_SAMPLE_COUNTS_S, avoid)
        if gate is None or gate.endpoint is None:
            return None
        lease.mark_closed()
        gate.count_in()
        lease.gate.count_moved()
        self._last_index = gate.instance.index
        return Lease(
            endpoint=gate.endpoint, instance=gate.instance, generation=gate.generation, gate=gate
        )

    def serve_waiting(self, now_s: float = NO_SAMPLE_COUNTS_S) -> int:
        """Grant leases from the queue's head on, while a slot and an open gate are there.

        Returns how many. Happens by itself whenever a gate opens or a slot comes free; call
        it after raising a limit.
        """
        granted_count = 0
        while self._waiters:
            lease = self._take(now_s)
            if lease is None:
                break
            head = next(iter(self._waiters))
            self._drop(head)
            granted_count += 1
            head.grant(lease)
        return granted_count

    def refuse_waiting(self, refusal: InferenceRefusal) -> int:
        """Answer everybody who waits now. Returns how many."""
        answered = list(self._waiters)
        for waiter in answered:
            self._drop(waiter)
        for waiter in answered:
            waiter.refuse(refusal)
        return len(answered)

    def _take(self, now_s: float) -> Lease | None:
        if self.running_count >= self.running_max:
            return None
        gate = self._least_loaded(now_s)
        if gate is None:
            return None
        if self.bounds.lease_count >= self.bounds.leases_max:
            if self._waiters:
                self.bounds.note_starved(self)
            return None
        endpoint = gate.endpoint
        assert endpoint is not None, f"the gate of {gate.instance} is open without an endpoint"
        gate.count_in()
        self.running_count += 1
        self.bounds.lease_count += 1
        self._last_index = gate.instance.index
        return Lease(
            endpoint=endpoint, instance=gate.instance, generation=gate.generation, gate=gate
        )

    def _least_loaded(self, now_s: float, avoid: Collection[int] = ()) -> Gate | None:
        """The open gate of the lowest score; of equals the next one round from the last entered."""
        best: Gate | None = None
        best_key = (0, False, 0)
        for index, gate in self.gates.items():
            if not gate.is_open or index in avoid:
                continue
            key = (gate.score(now_s), index <= self._last_index, index)
            if best is None or key < best_key:
                best, best_key = gate, key
        return best

    def _full(self, body_bytes: int) -> str | None:
        """Why nobody more may wait, for the client; None when there is room."""
        waiting_count = len(self._waiters)
        if waiting_count >= self.pending_max:
            if self.running_count >= self.running_max:
                what = f"all {self.running_max} running requests of this model are taken"
            elif not self.any_open:
                what = "this model is not being served yet"
            else:
                what = "no request can start now"
            return f"{what} and {waiting_count} of {self.pending_max} allowed requests wait"
        bounds = self.bounds
        if bounds.waiting_count >= bounds.total_max:
            return f"{bounds.waiting_count} of {bounds.total_max} requests wait for all models"
        if bounds.waiting_bytes + body_bytes > bounds.bytes_max:
            return (
                f"waiting requests hold {bounds.waiting_bytes} of {bounds.bytes_max} bytes, "
                f"and this one has {body_bytes}"
            )
        return None

    def _nudge_due(self) -> bool:
        if self._nudged or self.any_open:
            return False
        self._nudged = True
        return True

    def _drop(self, waiter: Waiter) -> None:
        del self._waiters[waiter]
        self.bounds.waiting_count -= 1
        self.bounds.waiting_bytes -= waiter.body_bytes
        if not self._waiters:
            self.bounds.forget_starved(self)

    def _gate_changed(self) -> None:
        self.serve_waiting()
        if self._waiters and self.on_stranded is not None and self._nudge_due():
            self.on_stranded()

    def _slots_freed(self, count: int) -> None:
        self.running_count -= count
        assert self.running_count >= 0, "more slots were given back than taken"
        self.bounds.give_back(count, NO_SAMPLE_COUNTS_S)
        self.serve_waiting()

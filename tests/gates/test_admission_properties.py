"""Any order of entering, waiting, leaving, opening and closing keeps the promises of the queue."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from capyctl.domain.errors import InferenceRefusal
from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.domain.launches import Endpoint
from capyctl.gates.admission import Admission, NotAdmitted, QueueBounds
from capyctl.gates.gate import Gate
from capyctl.gates.lease import Lease

NAMES = [DeploymentId(f"01J0000000000000000000000{n}") for n in range(2)]
REFUSAL = InferenceRefusal(code="deployment_stopped", message="stopped")
REASONS = st.sampled_from(["switch", "park", "engine_exit", "host_session"])


class Request:
    """A waiter that remembers its answers and checks the promises at the moment of each."""

    def __init__(self, world: "QueueWorld", admission: Admission, body_bytes: int) -> None:
        self.world = world
        self.admission = admission
        self.since_s = world.now_s
        self.body_bytes = body_bytes
        self.answers: list[object] = []

    def grant(self, lease: Lease) -> None:
        queue = self.world.queues[self.admission]
        assert queue[0] is self, "a lease went past the queue's head"
        assert lease.gate.is_open, "a closed gate let somebody in"
        queue.pop(0)
        self.answers.append(lease)
        self.world.leases.append((self.admission, lease))

    def refuse(self, refusal: InferenceRefusal) -> None:
        self.world.queues[self.admission].remove(self)
        self.answers.append(refusal)


class QueueWorld(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.bounds = QueueBounds(total_max=5, bytes_max=100, leases_max=4)
        self.admissions = [
            Admission(name, running_max=3, pending_max=3, bounds=self.bounds) for name in NAMES
        ]
        self.queues: dict[Admission, list[Request]] = {a: [] for a in self.admissions}
        self.leases: list[tuple[Admission, Lease]] = []
        self.requests: list[Request] = []
        self.unproven: dict[Gate, int] = {}
        self.watches: dict[Gate, list[str]] = {}
        self.watched: dict[Gate, bool] = {}
        self.expected: dict[Gate, int] = {}
        self.generation = 0
        for admission, name in zip(self.admissions, NAMES, strict=True):
            for index in range(2):
                gate = Gate(InstanceId(name, index))
                admission.add_gate(gate)
                self.unproven[gate] = 0
                self.watches[gate] = []
                self.watched[gate] = False
                self.expected[gate] = 0

    def gate(self, which: int, index: int) -> Gate:
        return self.admissions[which].gates[index]

    which = st.integers(0, 1)
    index = st.integers(0, 1)

    @rule(which=which, body_bytes=st.integers(0, 60))
    def arrive(self, which: int, body_bytes: int) -> None:
        self.now_s += 1.0
        admission = self.admissions[which]
        waited = list(self.queues[admission])
        if admission.refusal is not None:
            with pytest.raises(NotAdmitted):
                admission.try_enter(self.now_s)
            return
        lease = admission.try_enter(self.now_s)
        if lease is not None:
            assert not waited, "an arrival overtook a waiter"
            assert lease.gate.is_open
            self.leases.append((admission, lease))
            return
        request = Request(self, admission, body_bytes)
        try:
            admission.enqueue(request)
        except NotAdmitted:
            over_bytes = self.bounds.waiting_bytes + body_bytes > 100
            full = len(waited) >= admission.pending_max or self.bounds.waiting_count >= 5
            assert full or over_bytes
            return
        self.queues[admission].append(request)
        self.requests.append(request)

    @precondition(lambda self: any(self.queues.values()))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        waiting = [r for queue in self.queues.values() for r in queue]
        request = data.draw(st.sampled_from(waiting))
        self.queues[request.admission].remove(request)
        request.answers.append("withdrawn")
        assert request.admission.withdraw(request)
        assert not request.admission.withdraw(request)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), unproven=st.booleans())
    def leave(self, data: st.DataObject, unproven: bool) -> None:
        self.now_s += 1.0
        position = data.draw(st.integers(0, len(self.leases) - 1))
        admission, lease = self.leases.pop(position)
        if unproven:
            self.unproven[lease.gate] += 1
        self.note_expected(lease.gate)
        admission.leave(lease, self.now_s, unproven=unproven)

    @rule(which=which, index=index)
    def settle(self, which: int, index: int) -> None:
        gate = self.gate(which, index)
        expected, self.unproven[gate] = self.unproven[gate], 0
        self.note_expected(gate)
        assert gate.settle_unproven() == expected

    @rule(which=which, index=index)
    def become_ready(self, which: int, index: int) -> None:
        self.generation += 1
        endpoint = Endpoint(host="127.0.0.1", port=9000 + index, key=None, served_name="m")
        gate = self.gate(which, index)
        was_open = gate.is_open
        gate.open_for(endpoint, self.generation)
        self.drop_watch(gate, was_open)

    @rule(which=which, index=index, reason=REASONS)
    def close(self, which: int, index: int, reason: str) -> None:
        gate = self.gate(which, index)
        was_open = gate.is_open
        gate.close(reason)
        if was_open:
            self.note_expected(gate)

    @rule(which=which, index=index, reason=REASONS)
    def reopen(self, which: int, index: int, reason: str) -> None:
        gate = self.gate(which, index)
        was_open = gate.is_open
        gate.reopen(reason)
        self.drop_watch(gate, was_open)

    @rule(which=which, index=index)
    def watch(self, which: int, index: int) -> None:
        gate = self.gate(which, index)
        self.watched[gate] = True
        self.note_expected(gate)
        gate.watch_empty(lambda: self.watches[gate].append("empty"))

    @rule(which=which, refuse=st.booleans())
    def change_mode(self, which: int, refuse: bool) -> None:
        admission = self.admissions[which]
        admission.refusal = REFUSAL if refuse else None
        if refuse:
            waiting_count = len(self.queues[admission])
            assert admission.refuse_waiting(REFUSAL) == waiting_count

    @rule(which=which, running_max=st.integers(0, 4), pending_max=st.integers(0, 4))
    def change_limits(self, which: int, running_max: int, pending_max: int) -> None:
        admission = self.admissions[which]
        admission.running_max = running_max
        admission.pending_max = pending_max
        admission.serve_waiting(self.now_s)

    def drop_watch(self, gate: Gate, was_open: bool) -> None:
        if gate.is_open and not was_open:
            self.watched[gate] = False

    def held(self, gate: Gate) -> int:
        return sum(lease.gate is gate for _, lease in self.leases) + self.unproven[gate]

    def note_expected(self, gate: Gate) -> None:
        """Count the report that must come, from the books: somebody watches, nobody is inside."""
        if self.watched[gate] and not gate.is_open and not self.held(gate):
            self.expected[gate] += 1
            self.watched[gate] = False

    @invariant()
    def counts_are_those_of_the_books(self) -> None:
        for admission in self.admissions:
            held = sum(self.held(gate) for gate in admission.gates.values())
            assert admission.running_count == held
            assert admission.waiting_count == len(self.queues[admission])
            for gate in admission.gates.values():
                assert gate.held_count == self.held(gate)
                assert gate.unproven_count == self.unproven[gate]
        waiting = [r for queue in self.queues.values() for r in queue]
        assert self.bounds.waiting_count == len(waiting) <= self.bounds.total_max
        assert self.bounds.waiting_bytes == sum(r.body_bytes for r in waiting) <= 100
        assert self.bounds.lease_count <= self.bounds.leases_max
        assert self.bounds.lease_count == sum(a.running_count for a in self.admissions)

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        for admission in self.admissions:
            if not self.queues[admission]:
                continue
            free = admission.running_count < admission.running_max
            room = self.bounds.lease_count < self.bounds.leases_max
            assert not (free and room and admission.any_open), "a wake-up was lost"

    @invariant()
    def everyone_is_answered_at_most_once(self) -> None:
        waiting = {id(r) for queue in self.queues.values() for r in queue}
        for request in self.requests:
            assert len(request.answers) == (0 if id(request) in waiting else 1)

    @invariant()
    def emptiness_is_reported_exactly_once(self) -> None:
        for gate, calls in self.watches.items():
            assert len(calls) == self.expected[gate]


QueueWorld.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_queue_world = pytest.mark.slow(QueueWorld.TestCase)

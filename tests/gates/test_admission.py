"""Slots, queue and gates of one deployment, case by case."""

import pytest

from capyctl.domain.errors import InferenceRefusal
from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.domain.launches import Endpoint
from capyctl.gates.admission import Admission, NotAdmitted, QueueBounds
from capyctl.gates.gate import EngineLoad, Gate
from capyctl.gates.lease import Lease

WHO = DeploymentId("01J00000000000000000000000")
STOPPED = InferenceRefusal(code="deployment_stopped", message="stopped by an operator")


class Request:
    def __init__(self, since_s: float = 0.0, body_bytes: int = 10) -> None:
        self.since_s = since_s
        self.body_bytes = body_bytes
        self.lease: Lease | None = None
        self.refusal: InferenceRefusal | None = None

    def grant(self, lease: Lease) -> None:
        assert self.lease is None
        assert self.refusal is None
        self.lease = lease

    def refuse(self, refusal: InferenceRefusal) -> None:
        assert self.lease is None
        assert self.refusal is None
        self.refusal = refusal


def endpoint(index: int) -> Endpoint:
    return Endpoint(host="127.0.0.1", port=9000 + index, key="k", served_name="m")


def deployment(gate_count: int = 1, *, open_gates: bool = True, **limits) -> Admission:
    admission = Admission(WHO, **limits)
    for index in range(gate_count):
        gate = Gate(InstanceId(WHO, index))
        admission.add_gate(gate)
        if open_gates:
            gate.open_for(endpoint(index), 1)
    return admission


def enter(admission: Admission, now_s: float = 0.0) -> Lease:
    lease = admission.try_enter(now_s)
    assert lease is not None
    return lease


def test_a_lease_names_where_to_go():
    admission = deployment()
    lease = enter(admission)
    assert lease.endpoint == endpoint(0)
    assert lease.instance == InstanceId(WHO, 0)
    assert lease.generation == 1
    assert admission.running_count == 1


def test_closing_a_lease_twice_is_a_bug():
    admission = deployment()
    lease = enter(admission)
    admission.leave(lease, 1.0)
    with pytest.raises(AssertionError, match="given back twice"):
        admission.leave(lease, 1.0)


def test_a_freed_slot_goes_to_the_head_of_the_queue():
    admission = deployment(running_max=1)
    first = enter(admission)
    waiting = [Request(), Request()]
    assert admission.try_enter(0.0) is None
    for request in waiting:
        admission.enqueue(request)

    admission.leave(first, 1.0)
    assert waiting[0].lease is not None
    assert waiting[1].lease is None
    assert admission.waiting_count == 1


def test_an_arrival_does_not_overtake_a_waiter():
    """Even where a slot and an open gate are there: the limit was raised, nobody served yet."""
    admission = deployment(running_max=1)
    enter(admission)
    waiting = Request()
    admission.enqueue(waiting)
    admission.running_max = 2
    assert admission.try_enter(0.0) is None

    assert admission.serve_waiting() == 1
    assert waiting.lease is not None


def test_opening_a_gate_serves_the_queue_in_order_up_to_the_limit():
    admission = deployment(open_gates=False, running_max=2)
    waiting = [Request(since_s=float(n)) for n in range(3)]
    for request in waiting:
        assert admission.try_enter(0.0) is None
        admission.enqueue(request)
    assert admission.oldest_waiting_since_s == 0.0

    admission.gates[0].open_for(endpoint(0), 1)
    assert [r.lease is not None for r in waiting] == [True, True, False]
    assert admission.oldest_waiting_since_s == 2.0


def test_a_nudge_is_due_once_until_the_actor_takes_it():
    admission = deployment(open_gates=False)
    assert admission.enqueue(Request()) is True
    assert admission.enqueue(Request()) is False
    admission.take_nudge()
    assert admission.enqueue(Request()) is True


def test_waiting_for_a_slot_alone_nudges_nobody():
    admission = deployment(running_max=1)
    enter(admission)
    assert admission.enqueue(Request()) is False


def test_waiters_left_behind_by_a_closing_gate_are_announced_once():
    admission = deployment(running_max=1)
    enter(admission)
    admission.enqueue(Request())
    announced: list[str] = []
    admission.on_stranded = lambda: announced.append("stranded")
    gate = admission.gates[0]
    gate.close("switch")
    gate.close("park")
    assert announced == ["stranded"]


def test_no_queue_refuses_at_once_and_still_asks_for_the_model():
    admission = deployment(open_gates=False, pending_max=0)
    assert admission.try_enter(0.0) is None
    with pytest.raises(NotAdmitted) as refused:
        admission.enqueue(Request())
    assert refused.value.refusal.code == "queue_full"
    assert refused.value.nudge_due is True

    with pytest.raises(NotAdmitted) as again:
        admission.enqueue(Request())
    assert again.value.nudge_due is False


def test_no_queue_and_all_slots_taken():
    admission = deployment(running_max=1, pending_max=0)
    enter(admission)
    with pytest.raises(NotAdmitted) as refused:
        admission.enqueue(Request())
    assert refused.value.refusal.code == "queue_full"
    assert refused.value.nudge_due is False
    assert "all 1 running" in refused.value.refusal.message


def test_a_stopped_deployment_refuses_before_its_queue_does():
    admission = deployment(open_gates=False, pending_max=0)
    admission.refusal = STOPPED
    with pytest.raises(NotAdmitted) as refused:
        admission.try_enter(0.0)
    assert refused.value.refusal == STOPPED
    with pytest.raises(NotAdmitted) as refused:
        admission.enqueue(Request())
    assert refused.value.refusal == STOPPED


def test_all_waiters_are_answered_by_a_refusal():
    admission = deployment(open_gates=False)
    waiting = [Request(), Request()]
    for request in waiting:
        admission.enqueue(request)
    assert admission.refuse_waiting(STOPPED) == 2
    assert [r.refusal for r in waiting] == [STOPPED, STOPPED]
    assert admission.waiting_count == admission.bounds.waiting_count == 0
    assert admission.bounds.waiting_bytes == 0


def test_withdrawing_gives_up_one_place_only():
    admission = deployment(open_gates=False)
    waiting = [Request() for _ in range(3)]
    for request in waiting:
        admission.enqueue(request)
    assert admission.withdraw(waiting[1]) is True
    assert admission.withdraw(waiting[1]) is False

    admission.gates[0].open_for(endpoint(0), 1)
    assert [r.lease is not None for r in waiting] == [True, False, True]


def test_bounds_of_all_deployments_together():
    bounds = QueueBounds(total_max=2, bytes_max=100)
    first, second = (deployment(open_gates=False, bounds=bounds) for _ in range(2))
    first.enqueue(Request(body_bytes=60))
    with pytest.raises(NotAdmitted, match="60 of 100 bytes"):
        second.enqueue(Request(body_bytes=41))
    second.enqueue(Request(body_bytes=40))
    with pytest.raises(NotAdmitted, match="2 of 2 requests"):
        second.enqueue(Request(body_bytes=0))


def test_a_lease_freed_elsewhere_reaches_a_queue_that_had_none_to_take():
    bounds = QueueBounds(leases_max=1)
    first, second = (deployment(bounds=bounds) for _ in range(2))
    lease = enter(first)
    waiting = Request()
    assert second.try_enter(0.0) is None
    second.enqueue(waiting)

    first.leave(lease, 1.0)
    assert waiting.lease is not None
    assert bounds.lease_count == 1


def test_an_unproven_lease_keeps_its_slot_until_settled():
    admission = deployment(running_max=1)
    waiting = Request()
    lease = enter(admission)
    admission.enqueue(waiting)
    admission.leave(lease, 1.0, unproven=True)
    assert waiting.lease is None
    assert admission.running_count == 1
    assert admission.bounds.lease_count == 1

    admission.gates[0].settle_unproven()
    assert waiting.lease is not None
    assert admission.running_count == 1


def test_equally_loaded_instances_take_turns():
    admission = deployment(3)
    order = []
    for now in range(5):
        lease = enter(admission)
        order.append(lease.instance.index)
        admission.leave(lease, float(now))
    assert order == [0, 1, 2, 0, 1]


def test_the_least_loaded_instance_is_entered():
    admission = deployment(2)
    held = [enter(admission), enter(admission), enter(admission)]
    assert [lease.instance.index for lease in held] == [0, 1, 0]
    assert enter(admission).instance.index == 1

    admission.gates[0].load = EngineLoad(request_count=9, fresh_until_s=5.0)
    assert [enter(admission, 1.0).instance.index for _ in range(3)] == [1, 1, 1]


def test_a_closed_gate_is_passed_over():
    admission = deployment(2)
    admission.gates[0].close("host_session")
    assert [enter(admission).instance.index for _ in range(3)] == [1, 1, 1]


def test_when_a_request_last_left():
    admission = deployment()
    gate = admission.gates[0]
    assert gate.last_used_s is None
    admission.leave(enter(admission), 7.5)
    assert gate.last_used_s == 7.5


def test_removing_an_instance_takes_an_empty_closed_gate():
    admission = deployment(2)
    lease = enter(admission)
    gate = lease.gate
    with pytest.raises(AssertionError, match="is open"):
        admission.remove_gate(0)
    gate.close("stop")
    with pytest.raises(AssertionError, match="1 requests are inside"):
        admission.remove_gate(0)
    admission.leave(lease, 1.0)
    admission.remove_gate(0)
    assert enter(admission).instance.index == 1


def test_moving_keeps_the_slot_and_empties_the_old_gate():
    admission = deployment(2, running_max=1)
    lease = enter(admission)
    waiting = Request()
    admission.enqueue(waiting)
    emptied: list[str] = []
    lease.gate.close("engine_exit")
    lease.gate.watch_empty(lambda: emptied.append("empty"))

    moved = admission.move(lease, {0})
    assert moved is not None
    assert moved.instance.index == 1
    assert emptied == ["empty"]
    assert waiting.lease is None
    assert admission.running_count == 1
    with pytest.raises(AssertionError, match="given back twice"):
        admission.leave(lease, 1.0)
    admission.leave(moved, 1.0)
    assert waiting.lease is not None


def test_moving_needs_another_open_instance():
    admission = deployment(1)
    lease = enter(admission)
    assert admission.move(lease, {0}) is None
    admission.leave(lease, 1.0)
    assert admission.running_count == 0


def test_a_queue_that_meets_the_bound_when_its_gate_opens_is_served_later():
    bounds = QueueBounds(leases_max=1)
    first = deployment(bounds=bounds)
    second = deployment(open_gates=False, bounds=bounds)
    waiting = Request()
    second.enqueue(waiting)
    lease = enter(first)
    second.gates[0].open_for(endpoint(0), 1)
    assert waiting.lease is None

    first.leave(lease, 1.0)
    assert waiting.lease is not None

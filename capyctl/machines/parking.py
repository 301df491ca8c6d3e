"""The edges of an instance that gives memory back and keeps its engine: drain, park."""

from __future__ import annotations

import attrs

from capyctl.domain.measured import growth_max_bytes
from capyctl.domain.operations import OperationState
from capyctl.domain.specs import Charges, Phase
from capyctl.domain.units import gib
from capyctl.machines.doubting import serving_again
from capyctl.machines.expiring import expire_other
from capyctl.machines.history import end, end_open, lifecycle_event, moved
from capyctl.machines.instance import (
    AskParkRoom,
    Begin,
    CancelTasks,
    ChargePhase,
    CloseGate,
    DeadlineAt,
    Drain,
    Effect,
    EndEngine,
    EvictionOver,
    Failure,
    Held,
    Instance,
    InstanceState,
    ParkEngine,
    ReopenGate,
)
from capyctl.machines.observed import observed_instance, shown_alone
from capyctl.machines.seeing import with_residue
from capyctl.machines.starting import STOP_GRACE_S
from capyctl.machines.table import Moment, Step
from capyctl.messages.instance import (
    Cause,
    DeadlineReached,
    DrainTimedOut,
    EngineBroken,
    EngineNotParked,
    EngineParked,
    Evict,
    GateEmpty,
    NoParkRoom,
    Park,
    ParkRoom,
    StepTimedOut,
)

PARK_S_MAX = 600.0
PARK_GATE = "park"
STOP_GATE = "stop"


def park(one: Instance, event: Park, moment: Moment) -> Step[Instance]:
    """Admission closes at once; the engine is told once the last request has finished.

    An engine that kept ever more in earlier parks is stopped instead.
    """
    return _park_or_stop(one, event, moment, kinds=())


def evict_by_park(one: Instance, event: Evict, moment: Moment) -> Step[Instance]:
    """As a park; the eviction's operation is accepted here, where it begins."""
    request = Park(operation=event.operation, cause=Cause.SWITCH)
    return _park_or_stop(one, request, moment, kinds=("park_accepted",))


def _park_or_stop(
    one: Instance, event: Park, moment: Moment, *, kinds: tuple[str, ...]
) -> Step[Instance]:
    assert one.held is not None
    if one.held.grown is None:
        return _drain_to_park(one, event, moment, kinds=kinds)
    begun = _drain_to_park(one, event, moment, kinds=kinds)
    failure = Failure("parked_growth", one.held.grown)
    stopped = stop_for_park(begun.data, failure, "parked_growth", moment)
    effects = (*(x for x in begun.effects if not isinstance(x, AskParkRoom)), *stopped.effects)
    events = (*begun.events, *stopped.events)
    return attrs.evolve(begun, data=stopped.data, events=events, effects=effects)


def _drain_to_park(
    one: Instance, event: Park, moment: Moment, *, kinds: tuple[str, ...]
) -> Step[Instance]:
    assert one.held is not None
    ask = moment.fresh()
    draining = attrs.evolve(
        one,
        state=InstanceState.PARK_DRAIN,
        operation=event.operation,
        cause=event.cause,
        ask=ask,
        failure=None,
    )
    at_ms = event.operation.deadline_at_ms
    deadline = () if at_ms is None else (DeadlineAt(event.operation.id, at_ms),)
    room = AskParkRoom(ask, parked_charges(one, {}))
    return moved(
        one,
        draining,
        moment,
        *kinds,
        operations=(event.operation,) if kinds else (),
        effects=(*deadline, CloseGate(PARK_GATE), room),
    )


def drain_to_park(one: Instance, _: ParkRoom, __: Moment) -> Step[Instance]:
    """There is room for it once parked: the last requests finish first."""
    return Step(data=attrs.evolve(one, ask=None), effects=(Drain(),))


def no_park_room(one: Instance, event: NoParkRoom, moment: Moment) -> Step[Instance]:
    """Parked it would exceed the parked limit: it serves on; in a switch it is stopped."""
    failure = Failure("park_parked_capacity", event.reason)
    asked = attrs.evolve(one, ask=None)
    if one.cause is Cause.SWITCH:
        return stop_for_park(asked, failure, event.full, moment)
    return _ready_again(asked, OperationState.FAILED, failure, "park_refused", moment)


def stop_for_park(one: Instance, failure: Failure, why: str, moment: Moment) -> Step[Instance]:
    """What was to be a park becomes a stop; requests finish first, as for the park."""
    assert one.operation is not None
    draining = attrs.evolve(
        one, state=InstanceState.STOP_DRAIN, failure=failure, instead=why, ask=None
    )
    effects = (CloseGate(STOP_GATE), Drain())
    return moved(one, draining, moment, "park_refused", effects=effects)


def refuse_park(one: Instance, event: Park, moment: Moment) -> Step[Instance]:
    """Not ready any more when the park arrived: its operation ends, nothing else changes."""
    shown = observed_instance(one, (event.operation,))
    failure = Failure("lifecycle_conflict", f"the instance is {shown}, not ready")
    told = lifecycle_event(
        "park_refused",
        before=shown,
        after=shown,
        instance=attrs.evolve(one, operation=event.operation),
        operation=event.operation,
        moment=moment,
    )
    ended = end(event.operation, OperationState.FAILED, failure=failure)
    return Step(data=one, operations=(ended,), events=(told,))


def cannot_evict(one: Instance, _: Evict, __: Moment) -> Step[Instance]:
    """It moved on by itself; placement looks again."""
    return Step(data=one, effects=(EvictionOver(f"the instance is {shown_alone(one)}"),))


def tell_park(one: Instance, _: GateEmpty, moment: Moment) -> Step[Instance]:
    """Nothing runs in the engine. Armed: from here on its memory is in question."""
    if one.ask is not None:
        return Step(data=one)  # of a drain before a restart; the room is being asked for again
    assert one.operation is not None
    assert one.launch is not None
    assert one.held is not None
    operation = attrs.evolve(one.operation, state=OperationState.RUNNING)
    parking = attrs.evolve(
        one,
        state=InstanceState.PARKING,
        operation=operation,
        held=attrs.evolve(one.held, phase=Phase.PARKING),
    )
    effects = (ParkEngine(one.launch, _park_window_s(one, moment)),)
    return moved(one, parking, moment, "park_armed", operations=(operation,), effects=effects)


def _park_window_s(one: Instance, moment: Moment) -> float:
    if one.operation is None or one.operation.deadline_at_ms is None:
        return PARK_S_MAX
    left_s = (one.operation.deadline_at_ms - moment.now_ms) / 1000
    return max(1.0, min(PARK_S_MAX, left_s))


def still_ran(event: DrainTimedOut) -> str:
    """Why a drain came to nothing: how many requests it waited for, and how long."""
    count = event.open_count
    requests = "1 request" if count == 1 else f"{count} requests"
    return (
        f"{requests} still ran when the drain of {event.within_s:g} s ended; answers are never cut"
    )


def serve_on(
    one: Instance, event: DrainTimedOut | EngineNotParked, moment: Moment
) -> Step[Instance]:
    """The park did not come to pass and nothing was harmed: ready again.

    Unless a switch wants the room: then an engine that refuses to park, and in which nothing
    runs, is stopped.
    """
    match event:
        case DrainTimedOut():
            why = still_ran(event)
        case EngineNotParked(reason=reason):
            why = reason
    failure = Failure("park_refused", why)
    if isinstance(event, EngineNotParked) and one.cause is Cause.SWITCH:
        return _stop_instead(one, failure, moment)
    return _ready_again(one, OperationState.FAILED, failure, "park_refused", moment)


def _stop_instead(one: Instance, failure: Failure, moment: Moment) -> Step[Instance]:
    assert one.launch is not None
    ending = attrs.evolve(
        one, state=InstanceState.STOPPING, failure=failure, instead="park refused"
    )
    effects = (CancelTasks(), EndEngine(one.launch, STOP_GRACE_S, idle_s=0.0))
    return moved(one, ending, moment, "park_refused", effects=effects)


def cancel_park(one: Instance, event: DeadlineReached, moment: Moment) -> Step[Instance]:
    """The deadline came while requests were still finishing."""
    if one.operation is None or event.operation != one.operation.id:
        return expire_other(one, event, moment)
    failure = Failure("deadline", "the deadline came before the last requests had finished")
    return _ready_again(one, OperationState.CANCELLED, failure, "residency_cancelled", moment)


def _ready_again(
    one: Instance, state: OperationState, failure: Failure, kind: str, moment: Moment
) -> Step[Instance]:
    assert one.held is not None
    cleared, ended, voided = end_open(one, state, failure=failure)
    held = attrs.evolve(one.held, phase=Phase.READY)
    shown = failure if state is OperationState.FAILED else None
    ready = attrs.evolve(cleared, state=InstanceState.READY, held=held, ask=None, failure=shown)
    ready, done, proof = serving_again(one, ready)
    evicted: tuple[Effect, ...] = ()
    if one.cause is Cause.SWITCH:
        evicted = (EvictionOver(failure.detail),)
    reopened = (CancelTasks(), *proof, ReopenGate(PARK_GATE))
    effects = (*voided, *reopened, ChargePhase(held), *evicted)
    return moved(one, ready, moment, kind, operations=(*ended, *done), effects=effects)


def become_parked(one: Instance, event: EngineParked, moment: Moment) -> Step[Instance]:
    """Its memory came free: what is left of it is charged, measured where that could be."""
    assert one.held is not None
    held = _held_parked(one, event)
    seen = one.seen
    if event.attributed and event.residue:
        seen = with_residue(one, event.residue)
    cleared, ended, voided = end_open(one, OperationState.SUCCEEDED)
    after = attrs.evolve(cleared, state=InstanceState.PARKED, held=held, seen=seen, proof_due=False)
    effects: tuple[Effect, ...] = (*voided, ChargePhase(held))
    if one.then is not None:
        effects = (*effects, Begin(one.then))
    return moved(one, after, moment, "parked_committed", operations=ended, effects=effects)


def _held_parked(one: Instance, event: EngineParked) -> Held:
    """The charge once parked, and whether what is kept has grown too much since the first park."""
    assert one.held is not None
    parked = parked_charges(one, event.residue)
    held = attrs.evolve(one.held, phase=Phase.PARKED, parked=parked)
    if not event.attributed or not event.residue:
        return held
    first = one.held.first or parked
    grown = one.held.grown or _grown(first, parked, event.growth_limit)
    return attrs.evolve(held, kept=parked, first=first, grown=grown)


def _grown(first: Charges, parked: Charges, limit: str) -> str | None:
    for name, now_bytes in parked.items():
        then_bytes = first.get(name, now_bytes)
        growth_max = growth_max_bytes(limit, then_bytes)
        if growth_max is not None and now_bytes - then_bytes > growth_max:
            return (
                f"what it keeps of {name} memory while parked grew from {gib(then_bytes)} to "
                f"{gib(now_bytes)}, more than parked_growth_limit ({limit}) allows; stopped "
                f"instead of parked, the next request starts it anew"
            )
    return None


def parked_charges(one: Instance, residue: Charges) -> Charges:
    """The measured residue, never below the placeholder nor above ready; the largest is kept.

    Declared charges stay as they are.
    """
    assert one.held is not None
    phases = one.held.candidate.charges
    if one.held.candidate.declared:
        return dict(phases.parked)
    before = one.held.kept or {}
    charges = {}
    for domain, ready_bytes in phases.ready.items():
        floor = max(phases.parked.get(domain, 0), before.get(domain, 0))
        charges[domain] = min(max(floor, residue.get(domain, 0)), ready_bytes)
    for domain, floor in phases.parked.items():
        charges.setdefault(domain, floor)
    return charges


def park_broke(one: Instance, event: EngineBroken | StepTimedOut, moment: Moment) -> Step[Instance]:
    """Neither parked nor surely serving: only ending the engine is safe."""
    assert one.launch is not None
    match event:
        case EngineBroken(code=code, detail=detail):
            failure = Failure(code, detail)
        case StepTimedOut():
            failure = Failure("park_failed", "the engine did not park within its window")
    ending = attrs.evolve(one, state=InstanceState.STOPPING, failure=failure)
    effects = (CancelTasks(), EndEngine(one.launch, STOP_GRACE_S, idle_s=0.0))
    return moved(one, ending, moment, "park_uncertain", effects=effects)

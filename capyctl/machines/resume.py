"""How an instance goes on after nothing was seen of it: one way for all returns.

Its daemon or its actor began anew, or its host is back.
"""

from __future__ import annotations

import attrs

from capyctl.domain.events import NewEvent
from capyctl.domain.launches import LaunchRecord
from capyctl.domain.operations import OperationState
from capyctl.domain.specs import Phase
from capyctl.machines.away import lose_host
from capyctl.machines.doubting import PROVE_S, STARTING_GATE
from capyctl.machines.history import end_open, moved
from capyctl.machines.instance import (
    AskMemory,
    AskParkRoom,
    Begin,
    CloseGate,
    DeadlineAt,
    Drain,
    Effect,
    EndEngine,
    Failure,
    FreeMemory,
    Instance,
    InstanceState,
    OpenGate,
    Prove,
    ReopenGate,
    RetryAfter,
    Run,
    Watch,
    WithdrawMemory,
)
from capyctl.machines.observed import shown_alone
from capyctl.machines.parking import STOP_GATE, parked_charges
from capyctl.machines.starting import (
    HOST_GATE,
    RETRY_PAUSE_S,
    STOP_GRACE_S,
    launch_order,
    remaining_s,
)
from capyctl.machines.stopping import IDLE_S, INTERRUPTED, released
from capyctl.machines.table import Moment, Step
from capyctl.messages.instance import HostBack, HostLost, LaunchDiscarded

RESTARTED = "the daemon restarted"


def resume(
    one: Instance,
    moment: Moment,
    *,
    same_daemon: bool,
    running: bool = True,
    away: HostLost | None = None,
) -> Step[Instance]:
    """The first step of an actor that begins with ``one`` as it was stored.

    ``running``: False when the launch's process is certainly gone.
    ``same_daemon``: only the actor began anew; gates and leases are as they were, so a
    ready engine need not be proven again.
    ``away``: its host has no session now.

    1. Its host is away: it waits for it. It was away and is here: as when it comes back.
    2. Settled: nothing, or the start that waited for it.
    3. In line for memory: in line again.
    4. Armed without a known process: nothing runs (its latch died with us); in line again.
    5. A process is known: it is watched, and goes on where it was. A start whose process is
       surely gone begins anew, once nothing of that launch is left.
    6. Between two states of the engine (park, wake): not provable, so it is ended.
    7. On its way down: ended once more.
    """
    if away is not None and one.held is not None:
        step = lose_host(one, away, moment)
    elif one.lost is not None:
        step = _come_back(one, moment, running=running, why="its host was away")
    else:
        step = _go_on(one, moment, same_daemon=same_daemon, running=running, why=RESTARTED)
    deadlines = _deadlines(step.data)
    return attrs.evolve(step, effects=(*deadlines, *step.effects))


def host_back(one: Instance, event: HostBack, moment: Moment) -> Step[Instance]:
    """Its host is back. It was away: nothing is believed that is not proven or seen again."""
    if one.lost is not None:
        why = f"{event.name} was away"
        return _come_back(one, moment, running=event.running, why=why)
    return Step(data=one, effects=(ReopenGate(HOST_GATE),))


def host_back_draining(one: Instance, event: HostBack, moment: Moment) -> Step[Instance]:
    """Its host was silent: it goes on. Where the host's process is another, a drain or park that
    comes to nothing ends with a proof.
    """
    due = one.proof_due or event.fresh
    return host_back(attrs.evolve(one, proof_due=due), event, moment)


def host_back_ready(one: Instance, event: HostBack, moment: Moment) -> Step[Instance]:
    """Its host was silent: the gate opens; where its process is another, after a proof."""
    if not event.fresh:
        return host_back(one, event, moment)
    assert one.launch is not None
    doubted = attrs.evolve(one, state=InstanceState.RECONCILING)
    effects = (
        CloseGate(STARTING_GATE),
        ReopenGate(HOST_GATE),
        Prove(one.launch, PROVE_S),
    )
    return moved(one, doubted, moment, "reconcile_started", effects=effects)


def _come_back(one: Instance, moment: Moment, *, running: bool, why: str) -> Step[Instance]:
    """As what it was when its host went, or as what was asked of it meanwhile."""
    assert one.lost is not None
    was = attrs.evolve(one, state=one.lost.state, failure=one.lost.failure, lost=None)
    if was.state is InstanceState.STOP_DRAIN and was.launch is not None:
        step = _end_as_asked(was, was.launch, moment)
    else:
        step = _go_on(was, moment, same_daemon=False, running=running, why=why)
    effects: tuple[Effect, ...] = (ReopenGate(HOST_GATE),)
    if step.data.state is InstanceState.RECONCILING:
        effects = (CloseGate(STARTING_GATE), *effects)
    told = _told_from(one, step, moment)
    return attrs.evolve(step, events=told, effects=(*effects, *step.effects))


def _end_as_asked(one: Instance, launch: LaunchRecord, moment: Moment) -> Step[Instance]:
    """A stop that waited for the host. Whatever was inside has ended with the host's session."""
    assert one.operation is not None
    operation = attrs.evolve(one.operation, state=OperationState.RUNNING, reason=None)
    ending = attrs.evolve(one, state=InstanceState.STOPPING, operation=operation)
    effects = (CloseGate(STOP_GATE), EndEngine(launch, STOP_GRACE_S, idle_s=IDLE_S))
    return moved(
        one, ending, moment, "ordinary_cleanup_armed", operations=(operation,), effects=effects
    )


def _told_from(one: Instance, step: Step[Instance], moment: Moment) -> tuple[NewEvent, ...]:
    """The events of ``step``, the first of which begins at what was shown; one at least."""
    if not step.events:
        alive = step.data.state is InstanceState.PARKED
        kind = "reconciled_committed" if alive else "reconcile_started"
        return moved(one, step.data, moment, kind).events
    first, *rest = step.events
    shown = {**first.payload, "from": shown_alone(one)}
    return (attrs.evolve(first, payload=shown), *rest)


def _go_on(
    one: Instance, moment: Moment, *, same_daemon: bool, running: bool, why: str
) -> Step[Instance]:
    if one.state is InstanceState.STARTING and one.launch is not None and not running:
        return _begin_anew(one, one.launch, why)
    return _resume(one, moment, same_daemon=same_daemon, why=why)


def _deadlines(one: Instance) -> tuple[Effect, ...]:
    then = None if one.then is None else one.then.operation
    return tuple(
        DeadlineAt(operation.id, operation.deadline_at_ms)
        for operation in (one.operation, *one.riders, then)
        if operation is not None and operation.open and operation.deadline_at_ms is not None
    )


def _resume(one: Instance, moment: Moment, *, same_daemon: bool, why: str) -> Step[Instance]:
    match one.state:
        case InstanceState.STOPPED | InstanceState.FAILED:
            return Step(data=one, effects=() if one.then is None else (Begin(one.then),))
        case InstanceState.QUEUED if one.ask is None and one.attempts_count > 0:
            pause_s = RETRY_PAUSE_S * 2 ** (one.attempts_count - 1)
            return Step(data=one, effects=(RetryAfter(pause_s),))
        case InstanceState.QUEUED:
            return _ask_again(one, Phase.COLD, moment)
        case InstanceState.WAKE_QUEUED:
            return _watching(one, _ask_again(one, Phase.WAKE, moment))
        case InstanceState.STARTING:
            return _resume_start(one, moment)
        case InstanceState.READY | InstanceState.PARK_DRAIN | InstanceState.RECONCILING:
            return _resume_serving(one, moment, same_daemon=same_daemon, why=why)
        case InstanceState.PARKED:
            begin = () if one.then is None else (Begin(one.then),)
            return _watching(one, Step(data=one, effects=begin))
        case InstanceState.PARKING | InstanceState.WAKING:
            return _resume_between(one, moment, why)
        case _:
            return _resume_down(one, moment)


def _watching(one: Instance, step: Step[Instance]) -> Step[Instance]:
    assert one.launch is not None
    return attrs.evolve(step, effects=(Watch(one.launch), *step.effects))


def _ask_again(one: Instance, phase: Phase, moment: Moment) -> Step[Instance]:
    ask = moment.fresh()
    withdraw = () if one.ask is None else (WithdrawMemory(one.ask),)
    effects = (*withdraw, AskMemory(ask, phase))
    return Step(data=attrs.evolve(one, ask=ask), effects=effects)


def _resume_start(one: Instance, moment: Moment) -> Step[Instance]:
    if one.launch is not None and one.launch_id is not None:
        order = launch_order(one, one.launch_id)
        run = Run(one.launch, order, remaining_s(one, moment))
        return Step(data=one, effects=(run,))
    assert one.operation is not None
    ask = moment.fresh()
    operation = attrs.evolve(one.operation, state=OperationState.PENDING)
    queued = attrs.evolve(
        one,
        state=InstanceState.QUEUED,
        operation=operation,
        held=None,
        launch_id=None,
        ask=ask,
    )
    return moved(
        one,
        queued,
        moment,
        "initialize_queued",
        operations=(operation,),
        effects=(FreeMemory(), AskMemory(ask, Phase.COLD)),
    )


def _begin_anew(one: Instance, launch: LaunchRecord, why: str) -> Step[Instance]:
    """It was not seen as the engine was to begin: the accepted start is not lost."""
    failure = Failure(INTERRUPTED, f"{why} before the engine ran")
    ending = attrs.evolve(one, state=InstanceState.STOPPING, failure=failure)
    return Step(data=ending, effects=(EndEngine(launch, 0.0, idle_s=0.0),))


def _resume_serving(
    one: Instance, moment: Moment, *, same_daemon: bool, why: str
) -> Step[Instance]:
    assert one.launch is not None
    if same_daemon and one.state is InstanceState.READY:
        gate = OpenGate(one.launch, one.generation)
        return Step(data=one, effects=(Watch(one.launch), gate))
    if same_daemon and one.state is InstanceState.PARK_DRAIN:
        ask = moment.fresh()
        room = AskParkRoom(ask, parked_charges(one, {}))
        return Step(data=attrs.evolve(one, ask=ask), effects=(Watch(one.launch), room))
    failure = Failure(INTERRUPTED, f"{why} before the park began")
    cleared, ended, _ = end_open(one, OperationState.CANCELLED, failure=failure)
    doubted = attrs.evolve(cleared, state=InstanceState.RECONCILING, ask=None)
    effects = (Watch(one.launch), Prove(one.launch, PROVE_S))
    if one.state is InstanceState.RECONCILING:
        return Step(data=doubted, operations=ended, effects=effects)
    return moved(one, doubted, moment, "reconcile_started", operations=ended, effects=effects)


def _resume_between(one: Instance, moment: Moment, why: str) -> Step[Instance]:
    assert one.launch is not None
    verb = "park" if one.state is InstanceState.PARKING else "wake"
    failure = Failure(INTERRUPTED, f"{why} in the middle of a {verb}")
    ending = attrs.evolve(one, state=InstanceState.STOPPING, failure=failure)
    kind = "park_uncertain" if verb == "park" else "restore_uncertain"
    effects = (EndEngine(one.launch, STOP_GRACE_S, idle_s=0.0),)
    return moved(one, ending, moment, kind, effects=effects)


def _resume_down(one: Instance, moment: Moment) -> Step[Instance]:
    """STOP_DRAIN, STOPPING, CLEANING, UNCERTAIN: whatever may be left is ended."""
    if one.launch is None:
        assert one.launch_id is not None
        return released(one, LaunchDiscarded(launch=one.launch_id), moment)
    if one.state is InstanceState.STOP_DRAIN:
        return Step(data=one, effects=(Watch(one.launch), Drain(0.0)))
    return Step(data=one, effects=(EndEngine(one.launch, STOP_GRACE_S, idle_s=0.0),))

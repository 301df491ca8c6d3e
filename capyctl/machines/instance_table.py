"""The life of an instance: every state, every message, every edge.

Rule 1: a message about an earlier launch or another host, or an answer to an earlier request
for memory, is late and changes nothing.
Rule 2: no clock, no chance, no I/O. Time and names come in with `Moment`.
"""

from __future__ import annotations

from capyctl.domain.operations import Operation
from capyctl.machines import away as a
from capyctl.machines import expiring as x
from capyctl.machines import failing as f
from capyctl.machines import parking as p
from capyctl.machines import resume as r
from capyctl.machines import starting as s
from capyctl.machines import stopping as d
from capyctl.machines import widening as w
from capyctl.machines.instance import Instance, InstanceState
from capyctl.machines.table import Edge, Ignored, Moment, Step, Table, to, walk
from capyctl.messages import instance as m

(
    STOPPED,
    FAILED,
    QUEUED,
    STARTING,
    READY,
    PARK_DRAIN,
    PARKING,
    PARKED,
    WAKE_QUEUED,
    WAKING,
    STOP_DRAIN,
    STOPPING,
    RECONCILING,
    CLEANING,
    UNCERTAIN,
) = InstanceState

_GATE_RACE = Ignored("the gate emptied, or its drain ended, as the state moved on")
_GATE: dict[type, Edge[Instance] | Ignored] = {
    m.GateEmpty: _GATE_RACE,
    m.DrainTimedOut: _GATE_RACE,
}
_OTHER_DEADLINE: dict[type, Edge[Instance] | Ignored] = {
    m.DeadlineReached: to(*InstanceState, by=x.expire_other)
}
_ANYWHERE: dict[type, Edge[Instance] | Ignored] = {
    m.Mark: to(*InstanceState, by=d.mark),
    m.Abandon: to(*InstanceState, by=x.abandon),
    m.MorePlaces: Ignored("it has a place, wants none, or asks for one by its next order"),
    m.RetryDue: Ignored("the pause was for an attempt that is no more"),
}
_NO_EVICT: dict[type, Edge[Instance] | Ignored] = {m.Evict: to(*InstanceState, by=p.cannot_evict)}
_NO_PARK: dict[type, Edge[Instance] | Ignored] = {m.Park: to(*InstanceState, by=p.refuse_park)}
_TASKS_LATE: dict[type, Edge[Instance] | Ignored] = {
    m.EngineAnswered: Ignored("the probe raced the end"),
    m.EngineUnfit: Ignored("the probe raced the end"),
    m.EngineProved: Ignored("the proof raced the end"),
    m.StepTimedOut: Ignored("the window raced the end"),
    m.EngineParked: Ignored("the park raced the end"),
    m.EngineNotParked: Ignored("the park raced the end"),
    m.EngineWoken: Ignored("the wake raced the end"),
    m.EngineBroken: Ignored("the control call raced the end"),
    **_GATE,
}

_NO_HOST = Ignored("it holds nothing on any machine")
_ON_NO_HOST: dict[type, Edge[Instance] | Ignored] = {
    m.HostSuspended: _NO_HOST,
    m.HostLost: _NO_HOST,
    m.HostBack: _NO_HOST,
}
_ON_A_HOST: dict[type, Edge[Instance] | Ignored] = {
    m.HostSuspended: to(*InstanceState, by=a.suspend),
    m.HostLost: to(UNCERTAIN, by=a.lose_host),
    m.HostBack: to(*InstanceState, by=r.host_back),
}
_COMES_BACK_AS = (
    STOPPED,
    FAILED,
    QUEUED,
    STARTING,
    PARKED,
    WAKE_QUEUED,
    STOPPING,
    RECONCILING,
    CLEANING,
    UNCERTAIN,
)

_SETTLED: dict[type, Edge[Instance] | Ignored] = {
    **_ANYWHERE,
    **_NO_EVICT,
    **_NO_PARK,
    **_ON_NO_HOST,
    m.Start: to(QUEUED, by=s.begin),
    m.Stop: to(STOPPED, by=d.stop_nothing),
}
_GOING_DOWN: dict[type, Edge[Instance] | Ignored] = {
    **_TASKS_LATE,
    **_ANYWHERE,
    **_NO_EVICT,
    **_NO_PARK,
    **_ON_A_HOST,
    **_OTHER_DEADLINE,
    m.Start: to(*InstanceState, by=s.start_later),
    m.EngineExited: Ignored("it was to end; the end task proves that nothing is left"),
    m.GroupGone: to(STOPPED, FAILED, QUEUED, by=d.released),
    m.EndUnproven: to(UNCERTAIN, by=d.lose_track),
}

TABLE: Table[Instance] = {
    STOPPED: {
        **_SETTLED,
        m.DeadlineReached: Ignored("its operation has ended"),
    },
    FAILED: {
        **_SETTLED,
        m.DeadlineReached: to(FAILED, by=x.expire_given_up),
    },
    QUEUED: {
        **_ANYWHERE,
        m.MorePlaces: to(QUEUED, by=w.more_places),
        **_ON_NO_HOST,
        **_NO_EVICT,
        **_NO_PARK,
        m.Reserved: to(STARTING, by=s.arm),
        m.ReserveWaits: to(QUEUED, by=s.wait_for_room),
        m.ReserveRefused: to(STOPPED, by=s.no_room),
        m.RetryDue: to(QUEUED, by=s.try_again),
        m.DeadlineReached: to(STOPPED, FAILED, QUEUED, by=x.expire_queued),
        m.Start: to(QUEUED, by=s.join),
        m.Stop: to(STOPPED, by=d.stop_queued),
    },
    STARTING: {
        **_ANYWHERE,
        **_ON_A_HOST,
        **_NO_EVICT,
        **_NO_PARK,
        m.LaunchPrepared: to(STARTING, by=s.associate),
        m.LaunchNotPrepared: to(QUEUED, FAILED, by=s.not_prepared),
        m.EngineAnswered: to(READY, by=s.become_ready),
        m.EngineUnfit: to(STOPPING, by=f.start_failed),
        m.StepTimedOut: to(STOPPING, by=f.start_failed),
        m.EngineExited: to(STOPPING, by=f.start_failed),
        m.DeadlineReached: to(STOPPING, STARTING, by=f.start_failed),
        m.Start: to(STARTING, by=s.join),
        m.Stop: to(STOPPING, by=d.stop_now),
    },
    READY: {
        **_ANYWHERE,
        **_ON_A_HOST,
        **_OTHER_DEADLINE,
        m.Park: to(PARK_DRAIN, STOP_DRAIN, by=p.park),
        m.Stop: to(STOP_DRAIN, by=d.stop_serving),
        m.Evict: to(PARK_DRAIN, STOP_DRAIN, by=d.evict_ready),
        m.EngineExited: to(CLEANING, by=d.clean),
        m.Start: to(READY, by=s.already_ready),
        m.HostBack: to(READY, RECONCILING, by=r.host_back_ready),
        **_GATE,
    },
    PARK_DRAIN: {
        **_ANYWHERE,
        **_ON_A_HOST,
        m.HostBack: to(PARK_DRAIN, by=r.host_back_draining),
        **_NO_EVICT,
        **_NO_PARK,
        m.ParkRoom: to(PARK_DRAIN, by=p.drain_to_park),
        m.NoParkRoom: to(READY, RECONCILING, STOP_DRAIN, by=p.no_park_room),
        m.GateEmpty: to(PARKING, PARK_DRAIN, by=p.tell_park),
        m.DrainTimedOut: to(READY, RECONCILING, by=p.serve_on),
        m.DeadlineReached: to(READY, RECONCILING, PARK_DRAIN, by=p.cancel_park),
        m.EngineExited: to(CLEANING, by=d.clean),
        m.Start: to(PARK_DRAIN, by=s.start_later),
        m.Stop: to(STOP_DRAIN, by=d.stop_serving),
    },
    PARKING: {
        **_ANYWHERE,
        **_ON_A_HOST,
        m.HostBack: to(PARKING, by=r.host_back_draining),
        **_NO_EVICT,
        **_NO_PARK,
        **_OTHER_DEADLINE,
        m.EngineParked: to(PARKED, by=p.become_parked),
        m.EngineNotParked: to(READY, RECONCILING, STOPPING, by=p.serve_on),
        m.EngineBroken: to(STOPPING, by=p.park_broke),
        m.StepTimedOut: to(STOPPING, by=p.park_broke),
        m.EngineExited: to(CLEANING, by=d.clean),
        m.Start: to(PARKING, by=s.start_later),
        m.Stop: to(STOPPING, by=d.stop_now),
        **_GATE,
    },
    PARKED: {
        **_ANYWHERE,
        **_ON_A_HOST,
        **_NO_PARK,
        **_OTHER_DEADLINE,
        m.Start: to(WAKE_QUEUED, by=s.begin_wake),
        m.Stop: to(STOPPING, by=d.stop_now),
        m.Evict: to(STOPPING, by=d.evict_parked),
        m.EngineExited: to(CLEANING, by=d.clean),
        **_GATE,
    },
    WAKE_QUEUED: {
        **_ANYWHERE,
        **_ON_A_HOST,
        **_NO_EVICT,
        **_NO_PARK,
        m.Reserved: to(WAKING, by=s.wake_now),
        m.ReserveWaits: to(WAKE_QUEUED, by=s.wait_for_room),
        m.ReserveRefused: to(PARKED, by=s.no_room),
        **_GATE,
        m.DeadlineReached: to(PARKED, WAKE_QUEUED, by=x.expire_wake),
        m.EngineExited: to(CLEANING, by=d.clean),
        m.Start: to(WAKE_QUEUED, by=s.join),
        m.Stop: to(STOPPING, by=d.stop_now),
    },
    WAKING: {
        **_ANYWHERE,
        **_ON_A_HOST,
        **_NO_EVICT,
        **_NO_PARK,
        m.EngineWoken: to(READY, by=s.become_awake),
        **_GATE,
        m.EngineBroken: to(STOPPING, by=f.start_failed),
        m.StepTimedOut: to(STOPPING, by=f.start_failed),
        m.EngineExited: to(STOPPING, by=f.start_failed),
        m.DeadlineReached: to(STOPPING, WAKING, by=f.start_failed),
        m.Start: to(WAKING, by=s.join),
        m.Stop: to(STOPPING, by=d.stop_now),
    },
    STOP_DRAIN: {
        **_ANYWHERE,
        **_ON_A_HOST,
        m.HostBack: to(STOP_DRAIN, by=r.host_back_draining),
        **_NO_EVICT,
        **_NO_PARK,
        **_OTHER_DEADLINE,
        m.GateEmpty: to(STOPPING, by=d.end_now),
        m.DrainTimedOut: to(STOPPING, READY, RECONCILING, by=d.end_now),
        m.EngineExited: to(CLEANING, by=d.clean),
        m.Start: to(STOP_DRAIN, by=s.start_later),
        m.Stop: to(STOP_DRAIN, by=d.stop_also),
    },
    STOPPING: {
        **_GOING_DOWN,
        m.Stop: to(STOPPING, by=d.stop_also),
        m.LaunchPrepared: to(STOPPING, by=d.discard),
        m.LaunchNotPrepared: to(STOPPED, FAILED, by=d.released),
        m.LaunchDiscarded: to(STOPPED, FAILED, by=d.released),
    },
    CLEANING: {
        **_GOING_DOWN,
        m.Stop: to(CLEANING, by=d.stop_also),
    },
    RECONCILING: {
        **_ANYWHERE,
        **_ON_A_HOST,
        **_NO_EVICT,
        **_NO_PARK,
        **_OTHER_DEADLINE,
        m.EngineProved: to(READY, by=s.become_proved),
        m.EngineUnfit: to(STOPPING, by=f.start_failed),
        m.StepTimedOut: to(STOPPING, by=f.start_failed),
        m.EngineExited: to(CLEANING, by=d.clean),
        m.Start: to(RECONCILING, by=s.start_later),
        m.Stop: to(STOPPING, by=d.stop_now),
        **_GATE,
    },
    UNCERTAIN: {
        **_GOING_DOWN,
        m.Start: to(UNCERTAIN, by=a.start_uncertain),
        m.Stop: to(UNCERTAIN, STOPPING, by=a.stop_uncertain),
        m.DeadlineReached: to(UNCERTAIN, by=a.expire_uncertain),
        m.HostBack: to(*_COMES_BACK_AS, by=r.host_back),
        m.EndUnproven: Ignored("known already"),
    },
}

_NEWS_OF_A_HOST = (m.HostSuspended, m.HostLost, m.HostBack)


def step(one: Instance, event: object, moment: Moment) -> Step[Instance]:
    """Apply one message to one instance.

    Raises:
        IllegalTransition: no edge for this message in this state. Always a bug.
    """
    launch = getattr(event, "launch", None) or getattr(
        getattr(event, "record", None), "launch", None
    )
    if launch is not None and launch != one.launch_id:
        return Step(data=one)
    ask = getattr(event, "ask", None)
    if ask is not None and ask != one.ask:
        return Step(data=one)
    if isinstance(event, _NEWS_OF_A_HOST) and event.host != one.host:
        return Step(data=one)
    operation = getattr(event, "operation", None)
    if isinstance(operation, Operation) and _known(one, operation):
        return Step(data=one)
    return walk(TABLE, one, event, moment)


def _known(one: Instance, operation: Operation) -> bool:
    """Told before: a message can be told again after a crash of the one who sent it."""
    held = [o.id for o in (one.operation, *one.riders) if o is not None]
    return operation.id in held

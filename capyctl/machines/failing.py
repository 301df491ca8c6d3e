"""The edges of an instance whose start, wake or proof fails once a process runs."""

from __future__ import annotations

import attrs

from capyctl.machines.expiring import expire_other
from capyctl.machines.history import moved
from capyctl.machines.instance import (
    CancelTasks,
    Effect,
    EndEngine,
    Failure,
    Instance,
    InstanceState,
)
from capyctl.machines.starting import STOP_GRACE_S
from capyctl.machines.table import Moment, Step
from capyctl.messages.instance import (
    DeadlineReached,
    EngineBroken,
    EngineExited,
    EngineUnfit,
    StepTimedOut,
)


def start_failed(
    one: Instance,
    event: EngineUnfit | EngineExited | StepTimedOut | EngineBroken | DeadlineReached,
    moment: Moment,
) -> Step[Instance]:
    """The engine runs or ran, and will not be ready: end it, then say why.

    Without a process yet (its latch is being made) the launch task's answer is awaited.
    """
    if isinstance(event, DeadlineReached) and (
        one.operation is None or event.operation != one.operation.id
    ):
        return expire_other(one, event, moment)
    ending = attrs.evolve(one, state=InstanceState.STOPPING, failure=_why(one, event, moment))
    grace_s = 0.0 if isinstance(event, EngineExited) else STOP_GRACE_S
    effects: tuple[Effect, ...] = (CancelTasks(),)
    if one.launch is not None:
        effects = (*effects, EndEngine(one.launch, grace_s, idle_s=0.0))
    return moved(one, ending, moment, effects=effects)


def _why(one: Instance, event: object, moment: Moment) -> Failure:
    wakes = one.state is InstanceState.WAKING
    proves = one.state is InstanceState.RECONCILING
    code = "wake_failed" if wakes else "not_proven" if proves else "launch_failed"
    verb = "wake" if wakes else "proof" if proves else "launch"
    match event:
        case EngineUnfit(code=found, detail=detail) | EngineBroken(code=found, detail=detail):
            return Failure(found, f"{verb} failed: {detail}")
        case EngineExited(how=how, out_of_memory=out_of_memory):
            return Failure(
                "oom_killed" if out_of_memory else code,
                f"{verb} failed: engine {verb} failed: the engine exited before readiness ({how})",
            )
        case _:
            assert one.order is not None
            return Failure(code, f"{verb} failed: no answer within the {verb} window")

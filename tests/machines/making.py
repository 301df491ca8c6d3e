"""Small complete values for tests of the machines: one deployment on one card of 24 GiB."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import attrs

from capyctl.domain.checkpoints import CheckpointFacts, CheckpointRecord, DigestState
from capyctl.domain.identity import ProcessIdentity
from capyctl.domain.ids import (
    DeploymentId,
    DomainName,
    GpuId,
    HostId,
    InstanceId,
    LaunchId,
    OperationId,
    SwitchId,
)
from capyctl.domain.launches import LaunchRecord
from capyctl.domain.operations import Operation, OperationKind, OperationState
from capyctl.domain.specs import (
    Candidate,
    DeploymentSpec,
    EngineSettings,
    PhaseCharges,
    Residency,
    ResolvedSpec,
    Windows,
)
from capyctl.domain.units import GIB
from capyctl.machines.deployment import Deployment, Picture
from capyctl.machines.instance import Held, Instance, InstanceState
from capyctl.machines.table import Moment
from capyctl.messages.deployment import Act, ActionKind, ReceiptKey
from capyctl.messages.instance import (
    Cause,
    Evict,
    HostBack,
    HostLost,
    HostSuspended,
    Park,
    Start,
    StartOrder,
    Stop,
)

HOST = HostId("host")
GPU = GpuId("gpu0")
DEPLOYMENT = DeploymentId("D" + "0" * 25)
ONE = InstanceId(DEPLOYMENT, 0)
NOW_MS = 1_000_000
S = InstanceState


def fresh_ids(prefix: str = "F") -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers):025d}"


def moment(now_ms: int = NOW_MS, fresh: Callable[[], str] | None = None) -> Moment:
    return Moment(now_ms=now_ms, session_epoch=1, fresh=fresh or fresh_ids())


def charges(ready: int = 10, parked: int = 1) -> PhaseCharges:
    """GiB of the card."""
    card = DomainName("gpu0")
    held = {card: ready * GIB}
    return PhaseCharges(cold=held, ready=held, parking=held, parked={card: parked * GIB}, wake=held)


CANDIDATE = Candidate(host=HOST, gpu=GPU, gpu_uuid="GPU-0", charges=charges())
WINDOWS = Windows(request_deadline_s=1800.0, initialize_s=600.0, wake_s=60.0, stop_s=900.0)
ENGINE = EngineSettings(
    profile="p",
    profile_revision=1,
    family="vllm",
    executable=("/engine",),
    model_path="/models/m",
    served_name="m",
    parks=True,
)
SPEC = DeploymentSpec(
    name="m",
    routes=("m",),
    profile="p",
    family="vllm",
    instances=1,
    model_path="/models/m",
    expected_digest=None,
    residency=Residency.DEEP,
    request_deadline_s=1800.0,
    document="{}",
)
RESOLVED = ResolvedSpec(
    residency=Residency.DEEP,
    engine=ENGINE,
    candidates=(CANDIDATE,),
    windows=WINDOWS,
    weights_bytes=8 * GIB,
    provisional=False,
)
FACTS = CheckpointFacts(digest="sha256:" + "0" * 64, weights_bytes=8 * GIB, format="safetensors")
RECORDED = CheckpointRecord(state=DigestState.RECORDED, facts=FACTS)


def deployment(count: int = 1, **changes: object) -> Deployment:
    found = Deployment(
        id=DEPLOYMENT,
        spec=attrs.evolve(SPEC, instances=count),
        checkpoint=RECORDED,
        resolved=RESOLVED,
    )
    return attrs.evolve(found, **changes)


def picture(*ones: Instance, count: int | None = None, **changes: object) -> Picture:
    operations = changes.pop("operations", {})
    waiting = changes.pop("waiting_count", 0)
    wanted = max(1, len(ones)) if count is None else count
    return Picture(
        deployment=deployment(wanted, **changes),
        instances={one.id.index: one for one in ones},
        operations=operations,
        waiting_count=waiting,
    )


_numbers = itertools.count(1)


def operation(kind: OperationKind, **changes: object) -> Operation:
    made = Operation(
        id=OperationId(f"O{next(_numbers):025d}"),
        deployment=DEPLOYMENT,
        instance=0,
        kind=kind,
        accepted_at_ms=NOW_MS,
        deadline_at_ms=NOW_MS + 600_000,
    )
    return attrs.evolve(made, **changes)


def order(cause: Cause = Cause.OPERATOR, **changes: object) -> StartOrder:
    made = StartOrder(
        revision=1,
        generation=1,
        engine=ENGINE,
        residency=Residency.DEEP,
        candidates=(CANDIDATE,),
        windows=WINDOWS,
        cause=cause,
        may_evict=False,
    )
    return attrs.evolve(made, **changes)


def start(kind: OperationKind = OperationKind.INITIALIZE, **changes: object) -> Start:
    return Start(operation=operation(kind), order=order(**changes))


def stop(cause: Cause = Cause.OPERATOR, kind: OperationKind = OperationKind.CLEANUP) -> Stop:
    return Stop(operation=operation(kind), cause=cause)


def park(cause: Cause = Cause.OPERATOR) -> Park:
    return Park(operation=operation(OperationKind.PARK), cause=cause)


def evict(*, stop: bool = False) -> Evict:
    kind = OperationKind.CLEANUP if stop else OperationKind.PARK
    return Evict(switch=SwitchId("W" + "0" * 25), operation=operation(kind), stop=stop)


def suspended(host: HostId = HOST) -> HostSuspended:
    return HostSuspended(host=host)


def lost(host: HostId = HOST, why: str = "box was not heard of for 30 s") -> HostLost:
    return HostLost(host=host, why=why)


def back(host: HostId = HOST, **changes: object) -> HostBack:
    return attrs.evolve(HostBack(host=host, name="box"), **changes)


LAUNCH = LaunchId("L" + "0" * 25)


def record(launch: LaunchId = LAUNCH, index: int = 0) -> LaunchRecord:
    return LaunchRecord(
        launch=launch,
        deployment=DEPLOYMENT,
        index=index,
        family="vllm",
        profile="p",
        process=ProcessIdentity(pid=7, boot_id="b", start_ticks=1),
        port=20000,
        served_name="m",
        residency=Residency.DEEP,
        model_path="/models/m",
    )


_PHASES = {
    S.PARKED: "PARKED",
    S.WAKE_QUEUED: "PARKED",
    S.PARKING: "PARKING",
    S.WAKING: "WAKE",
    S.STARTING: "COLD",
}
_KINDS = {
    S.QUEUED: OperationKind.INITIALIZE,
    S.STARTING: OperationKind.INITIALIZE,
    S.PARK_DRAIN: OperationKind.PARK,
    S.PARKING: OperationKind.PARK,
    S.WAKE_QUEUED: OperationKind.RESTORE,
    S.WAKING: OperationKind.RESTORE,
    S.STOP_DRAIN: OperationKind.CLEANUP,
    S.STOPPING: OperationKind.CLEANUP,
}
ASK = "A" + "0" * 25


def instance(state: InstanceState, index: int = 0, **changes: object) -> Instance:
    """An instance as it usually is in ``state``."""
    from capyctl.domain.specs import Phase

    kind = _KINDS.get(state)
    empty = state in (S.STOPPED, S.FAILED, S.QUEUED)
    made = Instance(
        id=InstanceId(DEPLOYMENT, index),
        state=state,
        revision=1,
        generation=1,
        cause=Cause.OPERATOR,
        operation=None if kind is None else operation(kind, instance=index),
        ask=ASK if state in (S.QUEUED, S.WAKE_QUEUED) else None,
        order=order(),
        held=None if empty else Held(candidate=CANDIDATE, phase=Phase[_PHASES.get(state, "READY")]),
        launch_id=None if empty else LAUNCH,
        launch=None if empty else record(index=index),
    )
    return attrs.evolve(made, **changes)


def act(
    action: ActionKind,
    *,
    instance: int | None = None,
    evict: bool = False,
    expected_revision: int = 1,
    deadline_at_ms: int = NOW_MS + 60_000,
) -> Act:
    return Act(
        action=action,
        instance=instance,
        expected_revision=expected_revision,
        deadline_at_ms=deadline_at_ms,
        evict=evict,
        receipt=ReceiptKey(scope=f"actions:{DEPLOYMENT}", key="k", fingerprint="f"),
    )


def pending(kind: OperationKind, index: int | None = 0, **changes: object) -> Operation:
    return operation(kind, instance=index, state=OperationState.PENDING, **changes)

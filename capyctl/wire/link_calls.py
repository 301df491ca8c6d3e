"""What calls over the link are about: a host's methods as values, and their ends.

Values of `domain` and `contracts` cross as JSON objects of their attrs fields. A field of another
type is refused; one that is not known is left out; one that is not there has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import attrs
import msgspec

from capyctl.contracts.checkpoints import Unfetchable, Unmeasurable
from capyctl.contracts.engines import EngineBroken, ParkRefused
from capyctl.contracts.host import EndOutcome, LaunchRefused, ParkProof
from capyctl.contracts.hosts import CapabilityMissing, HostFailed
from capyctl.domain.checkpoints import CheckpointFacts, RemoteSource
from capyctl.domain.identity import ExitStatus
from capyctl.domain.launches import LaunchOrder, LaunchRecord
from capyctl.domain.specs import Charges
from capyctl.wire.link import DETAIL_CHARS_MAX, FRAME_BYTES_MAX, BadFrame, Error

LOG_TAIL_BYTES_MAX = 256 * 1024
"""The most of an engine's log that crosses at a time, as for one machine alone."""
_TAIL_WIRE_BYTES_MAX = FRAME_BYTES_MAX - 4096
"""Escaped, a control character takes six bytes; the rest of the frame takes less than this."""


# -- the calls ----------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Measure:
    model_path: str
    weights_file: str | None = None
    declared: str | None = None
    """The digest that the document states."""


@attrs.frozen(kw_only=True)
class Fetch:
    source: RemoteSource


@attrs.frozen(kw_only=True)
class Prepare:
    order: LaunchOrder


@attrs.frozen(kw_only=True)
class Run:
    record: LaunchRecord


@attrs.frozen(kw_only=True)
class Discard:
    record: LaunchRecord


@attrs.frozen(kw_only=True)
class WaitReady:
    record: LaunchRecord
    order: LaunchOrder | None = None


@attrs.frozen(kw_only=True)
class WaitExit:
    record: LaunchRecord


@attrs.frozen(kw_only=True)
class Park:
    record: LaunchRecord


@attrs.frozen(kw_only=True)
class Wake:
    record: LaunchRecord


@attrs.frozen(kw_only=True)
class End:
    record: LaunchRecord
    grace_s: float
    idle_s: float


@attrs.frozen(kw_only=True)
class LogTail:
    record: LaunchRecord
    bytes_max: int


# -- what they come to --------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Fetched:
    total_bytes: int


@attrs.frozen(kw_only=True)
class Ready:
    canary: str | None = None
    peak: Charges = attrs.field(factory=dict)
    """`Host.start_peak`, as it is once the engine answered."""
    generation: int = 0
    """Which opening of the launch the ingress has made of this; 0 on a host without one."""


@attrs.frozen(kw_only=True)
class Woken:
    generation: int = 0


@attrs.frozen(kw_only=True)
class Ended:
    outcome: EndOutcome


@attrs.frozen(kw_only=True)
class Tail:
    """`Host.log_tail`; with ``text`` None there is no log."""

    text: str | None = None
    truncated: bool = False


@attrs.frozen(kw_only=True)
class Nothing:
    """It is done; there is nothing to say."""


HostCall: TypeAlias = (
    Measure | Fetch | Prepare | Run | Discard | WaitReady | WaitExit | Park | Wake | End | LogTail
)

METHODS: Mapping[str, type[HostCall]] = {
    "measure": Measure,
    "fetch": Fetch,
    "prepare": Prepare,
    "run": Run,
    "discard": Discard,
    "wait_ready": WaitReady,
    "wait_exit": WaitExit,
    "park": Park,
    "wake": Wake,
    "end": End,
    "log_tail": LogTail,
}
RESULTS: Mapping[str, type[Any]] = {
    "measure": CheckpointFacts,
    "fetch": Fetched,
    "prepare": LaunchRecord,
    "run": Nothing,
    "discard": Nothing,
    "wait_ready": Ready,
    "wait_exit": ExitStatus,
    "park": ParkProof,
    "wake": Woken,
    "end": Ended,
    "log_tail": Tail,
}
ONCE = frozenset({"park", "wake"})
"""Never sent to another process of the host: nobody knows how far the first one came."""
CHEAP = frozenset({"measure", "log_tail"})
"""Changes nothing and may be asked again: its result need not be kept at any price."""
CAPABILITY_OF = {
    "measure": "checkpoint_digest",
    "fetch": "model_sources",
    "log_tail": "engine_log_tail",
}
_NAMES = {kind: name for name, kind in METHODS.items()}

V = TypeVar("V")


def method_of(call: HostCall) -> str:
    return _NAMES[type(call)]


def to_wire(value: object) -> Any:
    """A value of attrs classes, enums and containers as what JSON has."""
    return msgspec.to_builtins(value, str_keys=True)


def from_wire(kind: type[V], data: object) -> V:
    """The value that `to_wire` made ``data`` of.

    Raises:
        BadFrame: a field is missing, or of another type.
    """
    try:
        return msgspec.convert(data, kind, strict=True, str_keys=True)
    except (msgspec.ValidationError, AssertionError, RecursionError) as problem:
        raise BadFrame(f"no {kind.__name__}: {problem}") from None


def bounded_tail(text: str, truncated: bool) -> Tail:
    """The last whole lines of ``text`` that fit into a frame, whatever they are made of."""
    while len(msgspec.json.encode(text)) > _TAIL_WIRE_BYTES_MAX:
        half = text[len(text) // 2 :]
        text, truncated = half[half.find("\n") + 1 :], True
    return Tail(text=text, truncated=truncated)


# -- errors -------------------------------------------------------------------------------------


def error_frame(id: str, problem: BaseException, *, running: bool | None) -> Error:
    """How a call's failure crosses. What no contract foresees crosses as ``failed``."""
    type_, code, detail, final, again = "failed", "", "", False, False
    match problem:
        case LaunchRefused():
            type_, code, detail = "launch_refused", problem.code, problem.detail
            final = problem.permanent
        case Unmeasurable():
            type_, code, detail = "unmeasurable", problem.diagnostic, problem.detail
        case Unfetchable():
            type_, code, detail = "unfetchable", problem.reason, problem.detail
            final, again = problem.terminal, problem.again
        case ParkRefused():
            type_, detail = "park_refused", str(problem)
        case EngineBroken():
            type_, code, detail = "engine_broken", problem.code, problem.detail
        case PermissionError():
            type_, detail = "forbidden", str(problem)
        case CapabilityMissing():
            type_, code = "unsupported", problem.name
        case _:
            detail = f"{type(problem).__name__}: {problem}"
    return Error(
        id=id,
        type=type_,
        code=code[:128],
        detail=detail[:DETAIL_CHARS_MAX],
        final=final,
        again=again,
        running=running,
    )


def exception_of(error: Error) -> Exception:
    """What the caller of the call is to meet; `HostFailed` for types that are not known."""
    match error.type:
        case "launch_refused":
            return LaunchRefused(error.code, error.detail, permanent=error.final)
        case "unmeasurable":
            return Unmeasurable(error.code, error.detail)
        case "unfetchable":
            return Unfetchable(error.code, error.detail, terminal=error.final, again=error.again)
        case "park_refused":
            return ParkRefused(error.detail)
        case "engine_broken":
            return EngineBroken(error.code, error.detail)
        case "forbidden":
            return PermissionError(error.detail)
        case "unsupported":
            return CapabilityMissing(error.code)
        case _:
            return HostFailed(error.detail)

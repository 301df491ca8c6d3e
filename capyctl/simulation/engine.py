"""One simulated engine: a process that draws memory, serves, parks, and may end at any time."""

from __future__ import annotations

import enum

import attrs
import trio

from capyctl.domain.ids import DomainName, InstanceId
from capyctl.domain.launches import LaunchOrder, LaunchRecord
from capyctl.domain.specs import Charges, PhaseCharges


class EngineState(enum.Enum):
    LATCHED = "latched"
    """A process that waits; it draws nothing."""
    LOADING = "loading"
    SERVING = "serving"
    PARKED = "parked"
    GONE = "gone"


@attrs.define(eq=False)
class Engine:
    record: LaunchRecord
    order: LaunchOrder
    instance: InstanceId
    card: DomainName
    figures: PhaseCharges
    load_s: float
    hangs: bool
    unfit: bool
    crash_after_s: float | None
    residue_bytes: int
    undying_s: float
    """How long it cannot be shown to be gone, counted from the first attempt to end it."""
    state: EngineState = EngineState.LATCHED
    made_at_s: float = attrs.field(factory=trio.current_time)
    loaded_at_s: float = 0.0
    busy_until_s: float = 0.0
    undying_until_s: float | None = None
    requests_count: int = 0
    gone: trio.Event = attrs.field(factory=trio.Event)
    session: object = None
    """The daemon that holds its latch: it ends with it."""

    @property
    def uses(self) -> Charges:
        """Bytes it draws now, by domain."""
        match self.state:
            case EngineState.LATCHED | EngineState.GONE:
                return {}
            case EngineState.LOADING:
                return self.figures.cold
            case EngineState.SERVING:
                return self.figures.ready
            case EngineState.PARKED:
                return {**self.figures.parked, self.card: self.residue_bytes}

    def end(self) -> None:
        """The process is gone, and its memory is free."""
        self.state = EngineState.GONE
        self.gone.set()

    def __repr__(self) -> str:
        return f"<Engine {self.record.launch} of {self.instance}: {self.state.value}>"

"""All that the deciding side may ask of a host, whether it is this machine or another."""

from __future__ import annotations

import enum
from typing import Protocol

import attrs

from capyctl.contracts.checkpoints import Progress
from capyctl.domain.checkpoints import CheckpointFacts, RemoteSource
from capyctl.domain.devices import EngineSample, MachineShape, MemorySample
from capyctl.domain.identity import ExitStatus
from capyctl.domain.launches import Endpoint, LaunchOrder, LaunchRecord
from capyctl.domain.specs import Charges, ModelTask


class LaunchRefused(Exception):
    """The engine was not started, or will never be ready as ordered.

    ``permanent`` tells whether trying again can help: a missing executable cannot be
    mended by waiting, a port that is taken can.
    """

    def __init__(self, code: str, detail: str, *, permanent: bool) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.permanent = permanent


class EndOutcome(enum.Enum):
    GONE = "gone"
    """No process of the launch is left."""
    UNPROVEN = "unproven"
    """Told to end and killed, yet not shown to be gone: its memory counts as used."""
    BUSY = "busy"
    """Still answering that requests run when the bound was over; it was not signalled."""


@attrs.frozen(kw_only=True)
class ParkProof:
    """A park that was seen to have freed memory."""

    residue: Charges
    """Bytes still used per domain; empty where nothing could be measured."""
    attributed: bool = True
    """They are the launch's own by the driver's word. False: an upper bound, from how much the
    machine has more available than before."""


class Host(Protocol):
    def shape(self) -> MachineShape: ...

    async def measure(
        self, model_path: str, *, weights_file: str | None, declared: str | None = None
    ) -> CheckpointFacts:
        """See `contracts.checkpoints`. Raises Unmeasurable."""

    async def fetch(self, source: RemoteSource, progress: Progress) -> int:
        """See `contracts.checkpoints.Sources`. Raises Unfetchable."""

    async def prepare(self, order: LaunchOrder) -> LaunchRecord:
        """Lease a port, render the command, start its latch. The engine does not run yet.

        Raises:
            LaunchRefused: nothing runs and nothing is held.
        """

    async def run(self, record: LaunchRecord) -> None:
        """Let a prepared engine run. Call only once ``record`` is durable.

        Raises:
            LaunchRefused: its latch is gone.
        """

    async def discard(self, record: LaunchRecord) -> None:
        """End a prepared launch that was never run, and give its port back."""

    async def wait_ready(self, record: LaunchRecord, order: LaunchOrder | None) -> str | None:
        """Until the engine proves an answer; the canary's text. The caller bounds it.

        Raises:
            LaunchRefused: it will never be ready as ordered.
        """

    def start_peak(self, record: LaunchRecord) -> Charges:
        """Most bytes that the start took per domain, once `wait_ready` has returned.

        Only domains where that can be told; empty for an engine that was found again.
        """

    async def wait_exit(self, record: LaunchRecord) -> ExitStatus:
        """Return when the engine (its leader or a worker that holds memory) has ended.

        Cancelling detaches.
        """

    def is_running(self, record: LaunchRecord) -> bool:
        """False only when it is certain that the engine's leader is gone."""

    async def park(self, record: LaunchRecord) -> ParkProof:
        """Park an idle engine and see the memory come free.

        Memory that is not seen to come free is in the residue.

        Raises:
            ParkRefused, EngineBroken: see `contracts.engines`.
        """

    async def wake(self, record: LaunchRecord) -> None:
        """Wake a parked engine and check its canary; files it reloads are compared first.

        Raises:
            EngineBroken: only ending it is safe.
        """

    async def end(self, record: LaunchRecord, *, grace_s: float, idle_s: float) -> EndOutcome:
        """Wait up to ``idle_s`` for it to show idle, then end its group and prove it."""

    def endpoint(self, record: LaunchRecord) -> Endpoint:
        """Where requests go. Holds the launch's inference key."""

    def routes(self, family: str, task: ModelTask) -> frozenset[str]:
        """Inference paths that engines of this family serve for models of this task."""

    async def sample(self) -> MemorySample: ...

    async def sample_engine(self, record: LaunchRecord) -> EngineSample | None: ...

    async def log_tail(self, record: LaunchRecord, *, bytes_max: int) -> tuple[str, bool] | None:
        """See `contracts.processes`. Raises PermissionError for a raw log."""

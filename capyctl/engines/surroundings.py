"""What an engine family knows of the machine that its command lines are for."""

from __future__ import annotations

import os
from collections.abc import Callable

import attrs
import trio

from capyctl.domain.devices import Gpu, MachineShape
from capyctl.domain.launches import LaunchOrder


def _unknown() -> int | None:
    return None


@attrs.frozen(kw_only=True)
class Surroundings:
    """One machine and the place where capyctl keeps its files there."""

    state_dir: str
    """Absolute path of the state root."""
    shape: MachineShape
    available_bytes: Callable[[], int | None] = _unknown
    """RAM available now; None when it is not known."""
    cpu_count: int = attrs.field(factory=lambda: os.cpu_count() or 1)
    monotonic_s: Callable[[], float] = trio.current_time
    """The daemon's clock for samples."""

    def gpu_of(self, order: LaunchOrder) -> Gpu | None:
        """The first GPU that the engine may see."""
        wanted = set(order.device_uuids)
        return next((g for g in self.shape.gpus if g.uuid in wanted or g.id in wanted), None)

    def log_path(self, order: LaunchOrder) -> str:
        folder = os.path.join(self.state_dir, "logs", order.instance.deployment)
        return os.path.join(folder, f"{order.launch}.log")

    @property
    def runtime_dir(self) -> str:
        """Where capyctl's own entries lie that run inside engines."""
        return os.path.join(self.state_dir, "runtime")

    @property
    def rendezvous_dir(self) -> str:
        return os.path.join(self.state_dir, "rendezvous")

    def engine_dir(self, family: str, name: str) -> str:
        return os.path.join(self.state_dir, "engines", family, name)

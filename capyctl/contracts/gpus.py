"""What a machine has and what of it is in use."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from capyctl.domain.devices import MachineShape, MemorySample, ProcessFigures


class Machine(Protocol):
    def shape(self) -> MachineShape:
        """GPUs and memory domains. Read once, at start; blocks for up to 3 s."""

    async def sample(self) -> MemorySample:
        """Available bytes per domain now, within 3 s. A domain that is missing was not seen."""

    async def look_at(self, pids: Collection[int]) -> ProcessFigures:
        """Host RAM and programs of these processes; those that are gone count nothing."""

"""What a machine has and what of it is in use."""

from __future__ import annotations

from typing import Protocol

from capyctl.domain.devices import MachineShape, MemorySample


class Machine(Protocol):
    def shape(self) -> MachineShape:
        """GPUs and memory domains. Read once, at start; blocks for up to 3 s."""

    async def sample(self) -> MemorySample:
        """Available bytes per domain now. Runs in a thread; at most once a second."""

"""What one simulated engine holds of the machine's memory, from phase to phase of its life."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from capyctl.domain.units import MIB
from capyctl.simulated.behaviour import Behaviour
from capyctl.simulated.document import SimulatedDocument, SimulatedGpu, room_of
from capyctl.simulated.usage import Draw, put_draw, start_ticks_of

RESIDUE_BYTES = 512 * MIB
"""Drawn on the device by a parked engine, when nothing says otherwise."""


@attrs.frozen(kw_only=True)
class Sizes:
    """What the command line and the files ask for."""

    weights_bytes: int
    kv_cache_bytes: int
    keeps_copy: bool = False
    """Whether weights stay in host RAM while parked (sleep level 1)."""


def find_gpu(document: SimulatedDocument, visible: str | None) -> SimulatedGpu | None:
    """The GPU that ``CUDA_VISIBLE_DEVICES`` means: by uuid, a prefix of it, or index.

    None given: the first. An empty text, or one that means no GPU: none.
    """
    if visible is None:
        return next(iter(document.gpus), None)
    first = visible.split(",")[0].strip()
    for gpu in document.gpus:
        if first == str(gpu.index) or (first.startswith("GPU-") and gpu.uuid.startswith(first)):
            return gpu
    return None


class EngineMemory:
    """Draws and gives back. Every call blocks on a lock that is held for milliseconds."""

    def __init__(
        self,
        *,
        document: SimulatedDocument,
        behaviour: Behaviour,
        gpu: SimulatedGpu | None,
        usage_dir: Path | None,
        charges: Mapping[str, Mapping[str, int]] | None,
        owner_pid: int,
    ) -> None:
        """``owner_pid``: the process that holds the memory, and frees it by ending."""
        self._document = document
        self._behaviour = behaviour
        self._gpu = gpu
        self._usage_dir = usage_dir
        self._charges = charges
        self._owner_pid = owner_pid
        self._device = "system" if gpu is None else document.domain_of(gpu)
        self._phase = ""
        self._parks_count = 0

    @property
    def device_bytes(self) -> int:
        """Total of the device, or of host RAM without one."""
        return self._document.ram_bytes if self._gpu is None else self._gpu.total_bytes

    def enter(self, phase: str, sizes: Sizes) -> None:
        """Hold what a phase needs instead of what is held.

        Raises:
            OutOfMemory: there is not enough; nothing changed.
        """
        if phase == "parked" != self._phase:
            self._parks_count += 1
        self._phase = phase
        if self._usage_dir is None:
            return
        ticks = start_ticks_of(self._owner_pid)
        if ticks is None:
            return
        device_bytes, ram_bytes = self.needed(phase, sizes)
        draw = Draw(
            pid=self._owner_pid,
            start_ticks=ticks,
            gpu=None if self._gpu is None else self._gpu.id,
            bytes=device_bytes,
            ram_bytes=ram_bytes,
        )
        put_draw(
            self._usage_dir, draw, room=room_of(self._document), unified=self._document.unified
        )

    def needed(self, phase: str, sizes: Sizes) -> tuple[int, int]:
        """Bytes of a phase on the device and beside it in host RAM.

        What the document states goes first, then the charges, then the sizes.
        """
        behaviour = self._behaviour
        stated = behaviour.weights_bytes is not None or behaviour.kv_cache_bytes is not None
        charged = None if self._charges is None else self._charges.get(phase)
        ram = 0
        if charged is not None and self._device != "system":
            ram = charged.get("system", 0)
        elif charged is None and phase == "parked" and sizes.keeps_copy:
            ram = sizes.weights_bytes
        if phase == "parked":
            device = _first(behaviour.residue_bytes, charged, self._device, RESIDUE_BYTES)
            grown = max(0, self._parks_count - 1) * behaviour.residue_growth_bytes
            return device + grown, ram
        weights = _given(behaviour.weights_bytes, sizes.weights_bytes)
        cache = _given(behaviour.kv_cache_bytes, sizes.kv_cache_bytes)
        whole = weights + cache if stated else None
        return _first(whole, charged, self._device, weights + cache) + behaviour.extra_bytes, ram


def _first(stated: int | None, charged: Mapping[str, int] | None, domain: str, derived: int) -> int:
    if stated is not None:
        return stated
    return derived if charged is None else charged.get(domain, 0)


def _given(stated: int | None, derived: int) -> int:
    return derived if stated is None else stated

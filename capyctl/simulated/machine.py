"""A machine that is not there: its shape from a document, its use from living engines."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path

import trio

from capyctl.domain.devices import Gpu, MachineShape, MemorySample, ProcessFigures, Profile
from capyctl.domain.ids import DomainName, GpuId, HostId
from capyctl.ledger.limits import RamLimits, derive_domains
from capyctl.simulated.document import SimulatedDocument, room_of, write_document
from capyctl.simulated.engines import profiles
from capyctl.simulated.usage import drawn_bytes, locked, read_draws, write_whole

DOCUMENT_NAME = "document.json"
OOM_KILLS_NAME = "oom_kills"
"""In the usage folder: how many processes the kernel has ended for want of memory."""
LOCAL = HostId("local")


class SimulatedMachine:
    """Implements `contracts.gpus.Machine`. Simulated engines draw its memory from ``usage_dir``."""

    def __init__(
        self,
        document: SimulatedDocument,
        usage_dir: Path,
        *,
        host: HostId = LOCAL,
        ram_limits: RamLimits | None = None,
        monotonic_s: Callable[[], float] = trio.current_time,
    ) -> None:
        """Write the document into ``usage_dir`` for the engines to read; blocks briefly.

        Args:
            usage_dir: Owner-only; made if absent. Engines that run from an earlier start of
                the same folder keep what they drew.
            ram_limits: Limits that were set on host RAM instead of the derived ones.
            monotonic_s: The clock that samples are stamped with: the one that they are compared
                by, as those of a real machine.

        Raises:
            ValueError: the limits do not fit the memory.
            OSError: the folder cannot be written.
        """
        self._document = document
        self._usage_dir = usage_dir.absolute()
        self._monotonic_s = monotonic_s
        self._shape = _shape(document, host, ram_limits)
        with locked(self._usage_dir):
            text = json.dumps(write_document(document), indent=2)
            write_whole(self._usage_dir / DOCUMENT_NAME, text)

    def shape(self) -> MachineShape:
        return self._shape

    async def sample(self) -> MemorySample:
        """What the living engines leave of each domain. Reads their files in a thread."""
        draws = await trio.to_thread.run_sync(read_draws, self._usage_dir)
        drawn = drawn_bytes(draws, unified=self._document.unified)
        room = room_of(self._document)
        return MemorySample(
            at_s=self._monotonic_s(),
            available_bytes={
                DomainName(name): max(0, room[name] - drawn.get(name, 0)) for name in room
            },
            used_by_pid={draw.pid: draw.bytes for draw in draws if draw.gpu is not None},
            oom_kill_count=_count_in(self._usage_dir / OOM_KILLS_NAME),
        )

    async def look_at(self, pids: Collection[int]) -> ProcessFigures:
        """Host RAM that simulated engines among ``pids`` draw."""
        draws = await trio.to_thread.run_sync(read_draws, self._usage_dir)
        mine = sum(draw.ram_bytes for draw in draws if draw.pid in frozenset(pids))
        return ProcessFigures(anonymous_bytes=mine)

    def profiles(self) -> tuple[Profile, ...]:
        """The published engines: one of each family."""
        return profiles(
            document=self._usage_dir / DOCUMENT_NAME,
            usage_dir=self._usage_dir,
        )


def _count_in(path: Path) -> int:
    """What somebody wrote there who acts the kernel; 0 while nobody has."""
    try:
        text = path.read_text()
    except OSError:
        return 0
    return int(text) if text.strip().isdecimal() else 0


def _shape(document: SimulatedDocument, host: HostId, ram_limits: RamLimits | None) -> MachineShape:
    domains = derive_domains(
        ram_bytes=document.ram_bytes,
        cards={GpuId(gpu.id): gpu.total_bytes for gpu in document.gpus},
        unified=document.unified,
        outside_bytes={GpuId(gpu.id): gpu.used_bytes for gpu in document.gpus},
        ram_limits=ram_limits,
    )
    gpus = tuple(
        Gpu(
            id=GpuId(gpu.id),
            uuid=gpu.uuid,
            name=gpu.name,
            total_bytes=gpu.total_bytes,
            domain=DomainName(document.domain_of(gpu)),
        )
        for gpu in document.gpus
    )
    return MachineShape(host=host, gpus=gpus, domains=domains)

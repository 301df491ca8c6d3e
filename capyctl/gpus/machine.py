"""This machine: its memory domains once, and what is available in them now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import attrs
import trio

from capyctl.domain.devices import (
    Gpu,
    MachineShape,
    MemoryKind,
    MemorySample,
    ProcessFigures,
)
from capyctl.domain.ids import DomainName, GpuId, HostId
from capyctl.gpus.absent import NoCards
from capyctl.gpus.memory import MemoryUnreadable, RamReading, read_oom_kills, read_ram
from capyctl.gpus.nvml import Card, Cards, CardsUnreadable, NoDriver, Nvml
from capyctl.gpus.processes import read_processes
from capyctl.ledger.limits import SYSTEM, UNIFIED, RamLimits, derive_domains

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


class UnsupportedTopology(Exception):
    """Cards with and without memory of their own in one machine. ``code`` is stable."""

    code = "unsupported_gpu_topology"


@attrs.define(kw_only=True)
class LocalMachine:
    """Implements `contracts.gpus.Machine` for the machine that this process runs on."""

    _shape: MachineShape
    _cards: Cards
    memory_sources: Mapping[DomainName, str]
    """Where the capacity of host RAM was read, by domain."""
    _proc: Path = PROC
    _cgroups: Path = CGROUPS
    _monotonic_s: Callable[[], float] = trio.current_time
    _ram_limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))
    void: str | None = None
    """Why the newest sample has no figures for some domain; None when it is whole."""

    def shape(self) -> MachineShape:
        """As it was detected."""
        return self._shape

    def available_ram_bytes(self) -> int | None:
        """RAM available now, without a thread; None where it cannot be read."""
        try:
            return read_ram(self._proc, self._cgroups).available_bytes
        except MemoryUnreadable:
            return None

    async def sample(self) -> MemorySample:
        """Available bytes of every domain that could be read now, within 3 s.

        A domain that is missing was not observed. Cards are missing together: one
        misshapen figure voids them all.
        """
        available: dict[DomainName, int] = {}
        used_by_pid: dict[int, int] = {}
        void: list[str] = []
        oom_kills: int | None = None
        try:
            ram, oom_kills = await trio.to_thread.run_sync(
                self._read_ram, limiter=self._ram_limiter
            )
            available[UNIFIED if self._shape.unified else SYSTEM] = ram.available_bytes
        except MemoryUnreadable as problem:
            void.append(str(problem))
        try:
            for card in await self._cards.read_in_thread():
                self._note(card, available, used_by_pid)
        except (NoDriver, CardsUnreadable) as problem:
            void.append(str(problem))
        self.void = "; ".join(void) or None
        return MemorySample(
            at_s=self._monotonic_s(),
            available_bytes=available,
            used_by_pid=used_by_pid,
            oom_kill_count=oom_kills,
        )

    def _read_ram(self) -> tuple[RamReading, int | None]:
        reading = read_ram(self._proc, self._cgroups)
        return reading, read_oom_kills(self._proc, self._cgroups)

    async def look_at(self, pids: Collection[int]) -> ProcessFigures:
        """See the contract; reads one small file a process, in a thread."""
        return await trio.to_thread.run_sync(
            read_processes, self._proc, tuple(pids), limiter=self._ram_limiter
        )

    def _note(
        self, card: Card, available: dict[DomainName, int], used_by_pid: dict[int, int]
    ) -> None:
        gpu = next((one for one in self._shape.gpus if one.uuid == card.uuid), None)
        if gpu is None:
            return
        if not card.integrated and not self._shape.unified:
            available[gpu.domain] = card.free_bytes
        for pid, used_bytes in card.used_by_pid.items():
            used_by_pid[pid] = used_by_pid.get(pid, 0) + used_bytes


def detect_machine(
    host: HostId,
    *,
    ram_limits: RamLimits | None = None,
    our_pids: Collection[int] = (),
    cards: Cards | None = None,
    proc: Path = PROC,
    cgroups: Path = CGROUPS,
    monotonic_s: Callable[[], float] = trio.current_time,
) -> LocalMachine:
    """Look at this machine once. Blocks for up to 3 s.

    ``our_pids`` are engines of ours that run already: what they hold on a card is not
    somebody else's.

    Raises:
        UnsupportedTopology: cards of both kinds.
        CardsUnreadable: a driver is there and does not answer sensibly.
        MemoryUnreadable: no figures for host RAM.
        ValueError: ``ram_limits`` do not fit, or a card is too small to use.
    """
    ram = read_ram(proc, cgroups)
    source: Cards = Nvml() if cards is None else cards
    try:
        found = source.read()
    except NoDriver:
        found, source = (), NoCards()
    shape = _shape_of(host, ram, found, ram_limits, frozenset(our_pids))
    main = UNIFIED if shape.unified else SYSTEM
    return LocalMachine(
        shape=shape,
        cards=source,
        memory_sources={main: ram.source},
        proc=proc,
        cgroups=cgroups,
        monotonic_s=monotonic_s,
    )


def _shape_of(
    host: HostId,
    ram: RamReading,
    cards: tuple[Card, ...],
    ram_limits: RamLimits | None,
    our_pids: frozenset[int],
) -> MachineShape:
    integrated = [card for card in cards if card.integrated]
    if integrated and len(integrated) < len(cards):
        raise UnsupportedTopology(
            f"{integrated[0].name} shares the machine's memory and another card does not; "
            "capyctl manages one kind at a time"
        )
    unified = bool(integrated)
    totals = {_gpu_id(card): card.total_bytes or ram.total_bytes for card in cards}
    domains = derive_domains(
        ram_bytes=ram.total_bytes,
        cards=totals,
        unified=unified,
        outside_bytes={_gpu_id(card): _outside_bytes(card, our_pids) for card in cards},
        ram_limits=ram_limits,
    )
    by_gpu = {one.gpu: one.name for one in domains if one.kind is MemoryKind.DEVICE}
    gpus = tuple(
        Gpu(
            id=_gpu_id(card),
            uuid=card.uuid,
            name=card.name,
            total_bytes=totals[_gpu_id(card)],
            domain=UNIFIED if unified else by_gpu[_gpu_id(card)],
        )
        for card in cards
    )
    return MachineShape(host=host, gpus=gpus, domains=domains)


def _gpu_id(card: Card) -> GpuId:
    return GpuId(f"gpu{card.index}")


def _outside_bytes(card: Card, our_pids: frozenset[int]) -> int:
    """What is held on a card by others. Nothing where ours cannot be told from theirs."""
    if our_pids and not card.used_by_pid:
        return 0
    ours = sum(used for pid, used in card.used_by_pid.items() if pid in our_pids)
    return max(0, card.used_bytes - ours)

"""What NVIDIA's management library tells of the cards. Its calls block, so they run in threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Protocol

import attrs
import trio

READ_WITHIN_S = 3.0
CARDS_MAX = 64
SLACK_BYTES = 64 * 1024 * 1024
"""By how much used and free may exceed the total: they are not read in one instant."""


class NoDriver(Exception):
    """There is no NVIDIA driver or no card: a machine without a GPU."""


class CardsUnreadable(Exception):
    """A driver is there, and what it tells is missing, late or contradicts itself."""


@attrs.frozen(kw_only=True)
class Card:
    index: int
    uuid: str
    bus_id: str
    name: str
    total_bytes: int | None
    """None: the card has no memory of its own but shares the machine's."""
    used_bytes: int = 0
    free_bytes: int = 0
    used_by_pid: Mapping[int, int] = attrs.field(factory=dict)
    """Only where the driver tells."""

    @property
    def integrated(self) -> bool:
        return self.total_bytes is None


class Cards(Protocol):
    """Where card figures come from."""

    def read(self) -> tuple[Card, ...]:
        """All cards by index. Blocks up to 3 s. Raises NoDriver, CardsUnreadable."""

    async def read_in_thread(self) -> tuple[Card, ...]:
        """The same without blocking. Cancelling abandons the thread."""


def _library() -> Any:
    # A tenth of a daemon's start, and simulated machines and hosts without cards need none of it.
    import pynvml

    return pynvml


@attrs.define(kw_only=True)
class Nvml:
    """The library, initialised when first needed and again after any error."""

    binding: ModuleType | Any = attrs.field(factory=_library)
    """`pynvml`, or in tests something that looks like it."""
    within_s: float = READ_WITHIN_S
    _ready: bool = False
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))
    """One thread: while one hangs in the driver, no other follows it."""

    def read(self) -> tuple[Card, ...]:
        """All cards by index, in a thread of its own that is left behind when it hangs.

        Raises:
            NoDriver: no library, no driver, or no card.
            CardsUnreadable: late, misshapen or contradictory.
        """
        outcome: list[tuple[Card, ...] | BaseException] = []

        def work() -> None:
            try:
                outcome.append(self._read_now())
            except BaseException as problem:
                outcome.append(problem)

        thread = threading.Thread(target=work, name="nvml-first-look", daemon=True)
        thread.start()
        thread.join(self.within_s)
        if not outcome:
            raise CardsUnreadable(f"the NVIDIA driver did not answer within {self.within_s:g} s")
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    async def read_in_thread(self) -> tuple[Card, ...]:
        """All cards by index; gives up after 3 s, also on a thread that hangs already.

        Raises:
            NoDriver, CardsUnreadable: as :meth:`read`.
        """
        with trio.move_on_after(self.within_s):
            return await trio.to_thread.run_sync(
                self._read_now, abandon_on_cancel=True, limiter=self._limiter
            )
        raise CardsUnreadable(f"the NVIDIA driver did not answer within {self.within_s:g} s")

    def _read_now(self) -> tuple[Card, ...]:
        nvml = self.binding
        try:
            if not self._ready:
                nvml.nvmlInit()
                self._ready = True
            count = nvml.nvmlDeviceGetCount()
            if not isinstance(count, int) or not 0 <= count <= CARDS_MAX:
                raise CardsUnreadable(f"the NVIDIA driver tells of {count!r} cards")
            cards = tuple(self._card(nvml.nvmlDeviceGetHandleByIndex(n), n) for n in range(count))
        except nvml.NVMLError as problem:
            self._ready = False
            missing = (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded)
            if isinstance(problem, missing):
                raise NoDriver(str(problem)) from problem
            raise CardsUnreadable(f"the NVIDIA driver answered {problem}") from problem
        if not cards:
            raise NoDriver("the NVIDIA driver tells of no card")
        check_cards(cards)
        return cards

    def _card(self, handle: Any, index: int) -> Card:
        nvml = self.binding
        known: dict[str, Any] = {
            "index": nvml.nvmlDeviceGetIndex(handle),
            "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
            "bus_id": _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
            "name": _text(nvml.nvmlDeviceGetName(handle)),
        }
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError_NotSupported:
            used = self._used_by_pid(handle)
            return Card(**known, total_bytes=None, used_by_pid=used)
        return Card(
            **known,
            total_bytes=memory.total,
            used_bytes=memory.used,
            free_bytes=memory.free,
            used_by_pid=self._used_by_pid(handle),
        )

    def _used_by_pid(self, handle: Any) -> dict[int, int]:
        nvml = self.binding
        try:
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLError:
            return {}
        used: dict[int, int] = {}
        for process in processes:
            if isinstance(process.usedGpuMemory, int):
                used[process.pid] = used.get(process.pid, 0) + process.usedGpuMemory
        return used


def check_cards(cards: tuple[Card, ...]) -> None:
    """Refuse figures that cannot be true: one bad value voids them all.

    Raises:
        CardsUnreadable: says which.
    """
    if len({card.index for card in cards}) < len(cards):
        raise CardsUnreadable("two cards have one index")
    if len({card.uuid for card in cards}) < len(cards):
        raise CardsUnreadable("two cards have one UUID")
    for card in cards:
        if type(card.index) is not int or card.index < 0 or not card.uuid:
            raise CardsUnreadable(f"a card has index {card.index!r} and UUID {card.uuid!r}")
        if card.total_bytes is None:
            continue
        figures = (card.total_bytes, card.used_bytes, card.free_bytes)
        if not all(type(one) is int and one >= 0 for one in figures) or card.total_bytes == 0:
            raise CardsUnreadable(f"gpu{card.index} tells of {figures} bytes")
        if card.used_bytes + card.free_bytes > card.total_bytes + SLACK_BYTES:
            raise CardsUnreadable(f"gpu{card.index}: used and free exceed the total of {figures}")


def _text(value: Any) -> str:
    """Older releases of the library give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

"""The limits of a machine's memory domains, derived from how much memory it has."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from capyctl.domain.devices import MemoryDomain, MemoryKind
from capyctl.domain.ids import DomainName, GpuId
from capyctl.domain.units import GIB, gib

RAM_MANAGED_PERCENT = 50
RAM_RESERVE_PERCENT = 20
RAM_PARKED_PERCENT = 25
CARD_RESERVE_PERCENT = 8
CARD_RESERVE_BYTES_MIN = GIB
CARD_PARKED_PERCENT = 25
CARD_PARKED_BYTES_MAX = 8 * GIB

SYSTEM = DomainName("system")
UNIFIED = DomainName("unified")


@attrs.frozen(kw_only=True)
class RamLimits:
    """Limits that somebody set on host RAM, in bytes. None: derived."""

    managed_limit_bytes: int | None = None
    free_reserve_bytes: int | None = None
    parked_limit_bytes: int | None = None


def derive_domains(
    *,
    ram_bytes: int,
    cards: Mapping[GpuId, int],
    unified: bool = False,
    outside_bytes: Mapping[GpuId, int] | None = None,
    ram_limits: RamLimits | None = None,
) -> tuple[MemoryDomain, ...]:
    """The memory domains of a machine: RAM first, then one per card in the order of ``cards``.

    Args:
        ram_bytes: Host RAM; on a unified machine the one pool that its GPUs share.
        cards: Total bytes of each card. Ignored, but for its presence, on a unified machine.
        outside_bytes: What each card holds that is not ours. It comes out of that card's free
            reserve, because a card's available bytes are short of it already.

    Raises:
        ValueError: a memory is not positive, or ``ram_limits`` do not fit the RAM.
    """
    if ram_bytes <= 0:
        raise ValueError(f"host RAM is {ram_bytes} bytes; it must be more than none")
    kind = MemoryKind.UNIFIED if unified else MemoryKind.DISTINCT
    domains = [_ram_domain(kind, ram_bytes, ram_limits or RamLimits())]
    if not unified:
        outside = outside_bytes or {}
        domains += [_card_domain(gpu, cards[gpu], outside.get(gpu, 0)) for gpu in cards]
    return tuple(domains)


def _ram_domain(kind: MemoryKind, total_bytes: int, limits: RamLimits) -> MemoryDomain:
    managed = _given(limits.managed_limit_bytes, total_bytes * RAM_MANAGED_PERCENT // 100)
    reserve = _given(limits.free_reserve_bytes, total_bytes * RAM_RESERVE_PERCENT // 100)
    # A derived sub-limit gives way to a smaller managed limit; one that was set does not.
    parked_default = min(total_bytes * RAM_PARKED_PERCENT // 100, managed)
    parked = _given(limits.parked_limit_bytes, parked_default)
    if managed <= 0:
        raise ValueError("managed_limit must be more than 0")
    if managed + reserve > total_bytes:
        raise ValueError(
            f"managed_limit {gib(managed)} and free_reserve {gib(reserve)} "
            f"together exceed the memory of {gib(total_bytes)}"
        )
    if not 0 <= parked <= managed:
        raise ValueError(f"parked_limit {gib(parked)} exceeds managed_limit {gib(managed)}")
    return MemoryDomain(
        name=UNIFIED if kind is MemoryKind.UNIFIED else SYSTEM,
        kind=kind,
        total_bytes=total_bytes,
        managed_limit_bytes=managed,
        free_reserve_bytes=reserve,
        parked_limit_bytes=parked,
    )


def _card_domain(gpu: GpuId, total_bytes: int, outside_bytes: int) -> MemoryDomain:
    reserve = max(CARD_RESERVE_BYTES_MIN, total_bytes * CARD_RESERVE_PERCENT // 100)
    if total_bytes <= reserve:
        raise ValueError(f"{gpu} has {gib(total_bytes)}: no more than the {gib(reserve)} kept free")
    managed = total_bytes - reserve
    parked = min(CARD_PARKED_BYTES_MAX, total_bytes * CARD_PARKED_PERCENT // 100)
    return MemoryDomain(
        name=DomainName(gpu),
        kind=MemoryKind.DEVICE,
        total_bytes=total_bytes,
        managed_limit_bytes=managed,
        free_reserve_bytes=max(0, reserve - outside_bytes),
        parked_limit_bytes=min(parked, managed),
        gpu=gpu,
    )


def _given(value: int | None, derived: int) -> int:
    return derived if value is None else value

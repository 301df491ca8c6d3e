"""What a host's document says of its machine's memory, laid over what the machine is."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from capyctl.config.host_settings import DomainPolicy, HostSettings
from capyctl.daemon.detecting import MachineUnusable
from capyctl.domain.devices import MachineShape, MemoryDomain, MemoryKind
from capyctl.domain.units import gib
from capyctl.ledger.limits import CARD_RESERVE_BYTES_MIN, CARD_RESERVE_PERCENT
from capyctl.simulated.document import is_simulated_gpu

MISMATCH = "device_policy_mismatch"


def limited(shape: MachineShape, settings: HostSettings) -> MachineShape:
    """The machine with the limits of the document; the derived ones where it states none.

    GPUs that the document does not name are left alone.

    Raises:
        MachineUnusable: ``device_policy_mismatch``: it names a domain or a GPU that the machine
            does not have, another GPU is in its place, or limits exceed the memory.
    """
    if not settings.domains:
        return shape
    _check_gpus(shape, settings)
    by_name = {str(domain.name): domain for domain in shape.domains}
    for name in settings.domains:
        if name not in by_name:
            raise MachineUnusable(
                MISMATCH,
                f"resource_policy.domains.{name}: this machine has {', '.join(by_name)}; state "
                "those, or run `capyctl init host` again",
            )
    stated = [domain for domain in shape.domains if domain.name in settings.domains]
    domains = tuple(_limited(domain, settings.domains) for domain in stated)
    names = {domain.name for domain in domains}
    gpus = tuple(gpu for gpu in shape.gpus if gpu.domain in names)
    return attrs.evolve(shape, domains=domains, gpus=gpus)


def _check_gpus(shape: MachineShape, settings: HostSettings) -> None:
    uuids = {str(gpu.id): gpu.uuid for gpu in shape.gpus}
    for name, uuid in settings.gpu_uuids.items():
        found = uuids.get(name)
        if found != uuid:
            there = "there is none" if found is None else f"there is {found}"
            raise MachineUnusable(
                MISMATCH,
                f"resource_policy.devices.{name}: {uuid} is stated, and {there}: {_advice(uuid)}",
            )


def _advice(stated: str) -> str:
    if is_simulated_gpu(stated):
        return (
            "the document is of a simulated machine; start with --simulate and what `capyctl init "
            "host` had for it"
        )
    return "state the GPU that is in this machine, or run `capyctl init host` again"


def _limited(domain: MemoryDomain, policies: Mapping[str, DomainPolicy]) -> MemoryDomain:
    policy = policies[domain.name]
    managed, kept_free = policy.managed_limit_bytes, policy.free_reserve_bytes
    if managed + kept_free > domain.total_bytes:
        raise MachineUnusable(
            MISMATCH,
            f"resource_policy.domains.{domain.name}: managed_limit {gib(managed)} and "
            f"free_reserve {gib(kept_free)} together exceed the memory of "
            f"{gib(domain.total_bytes)}",
        )
    reserve_bytes = policy.free_reserve_bytes
    if domain.kind is MemoryKind.DEVICE:
        reserve_bytes = max(0, reserve_bytes - _outside_bytes(domain))
    return attrs.evolve(
        domain,
        managed_limit_bytes=policy.managed_limit_bytes,
        free_reserve_bytes=reserve_bytes,
        parked_limit_bytes=policy.parked_limit_bytes,
    )


def _outside_bytes(card: MemoryDomain) -> int:
    """What others held on it when it was looked at: the derived reserve is short of that."""
    whole = max(CARD_RESERVE_BYTES_MIN, card.total_bytes * CARD_RESERVE_PERCENT // 100)
    return max(0, whole - card.free_reserve_bytes)

"""A look at the real machine, with its refusals as codes that commands know."""

from __future__ import annotations

from collections.abc import Callable

from capyctl.domain.ids import HostId
from capyctl.gpus.machine import LocalMachine, UnsupportedTopology, detect_machine
from capyctl.gpus.memory import MemoryUnreadable, read_ram
from capyctl.gpus.nvml import CardsUnreadable
from capyctl.ledger.limits import RamLimits


class MachineUnusable(Exception):
    """This machine is not one that a role runs on. ``code`` is stable."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


def detected(host: HostId, ram_limits: Callable[[int], RamLimits]) -> LocalMachine:
    """The machine that this process runs on. Blocks for up to 3 s.

    ``ram_limits`` is given the bytes of host RAM.

    Raises:
        MachineUnusable: ``unsupported_gpu_topology``, or ``topology_unknown``.
        ValueError: ``ram_limits`` do not fit, or a card is too small to use.
    """
    try:
        return detect_machine(host, ram_limits=ram_limits(read_ram().total_bytes))
    except UnsupportedTopology as problem:
        raise MachineUnusable(problem.code, str(problem)) from problem
    except (CardsUnreadable, MemoryUnreadable) as problem:
        raise MachineUnusable("topology_unknown", str(problem)) from problem

"""Which machine this daemon runs on: the real one, or a simulated one; and its adapters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from capyctl.checkpoints.digest import LocalCheckpoints
from capyctl.config.settings import MemoryAmount, StandaloneSettings
from capyctl.contracts.gpus import Machine
from capyctl.contracts.host import LaunchRefused
from capyctl.control.host import LocalHost
from capyctl.daemon.root import launch_secret, owner_folder
from capyctl.domain.devices import MachineShape, Profile
from capyctl.domain.ids import HostId
from capyctl.domain.launches import LaunchOrder
from capyctl.engines.families import families
from capyctl.engines.preparation import NotPrepared, prepare_launch
from capyctl.engines.surroundings import Surroundings
from capyctl.gpus.machine import detect_machine
from capyctl.gpus.memory import MemoryUnreadable, read_ram
from capyctl.launch.addresses import PortLeases, PortsExhausted
from capyctl.launch.processes import LocalProcesses
from capyctl.ledger.limits import RamLimits
from capyctl.simulated.document import parse_simulate
from capyctl.simulated.engines import charges_env
from capyctl.simulated.machine import SimulatedMachine


@attrs.frozen(kw_only=True)
class OwnMachine:
    """This machine's host, and what it publishes."""

    host: LocalHost
    processes: LocalProcesses
    shape: MachineShape
    simulated_profiles: tuple[Profile, ...]


class Ports:
    """Leases of engine ports, in the words of the host."""

    def __init__(self, first: int, last: int) -> None:
        self._leases = PortLeases(first, last)

    def lease(self) -> int:
        try:
            return self._leases.lease()
        except PortsExhausted as exhausted:
            raise OSError(str(exhausted)) from exhausted

    def reserve(self, port: int) -> None:
        if not self._leases.is_taken(port):
            self._leases.reserve(port)

    def release(self, port: int) -> None:
        self._leases.release(port)

    def is_taken(self, port: int) -> bool:
        return self._leases.is_taken(port)


def own_machine(settings: StandaloneSettings, simulate: str | None) -> OwnMachine:
    """Put the adapters together. Looks at the machine for up to 3 s.

    Raises:
        ValueError: the simulation text or a limit does not fit; the message names it.
        OSError: a folder of the state root cannot be used.
    """
    root = settings.state_root
    host_id = HostId(settings.host)
    machine, profiles = _machine(settings, simulate, host_id)
    shape = machine.shape()
    surroundings = Surroundings(
        state_dir=str(root),
        shape=shape,
        available_bytes=_available_ram,
    )
    processes = LocalProcesses(root)
    first, last = settings.engine_ports
    host = LocalHost(
        machine=machine,
        machine_shape=shape,
        processes=processes,
        families=families(surroundings),
        checkpoints=LocalCheckpoints(owner_folder(root / "observation")),
        ports=Ports(first, last),
        secret=launch_secret(root),
        before_launch=lambda order: _before_launch(order, surroundings),
        extra_env=_charges if simulate is not None else _nothing,
    )
    return OwnMachine(host=host, processes=processes, shape=shape, simulated_profiles=profiles)


def _machine(
    settings: StandaloneSettings, simulate: str | None, host: HostId
) -> tuple[Machine, tuple[Profile, ...]]:
    if simulate is None:
        ram = read_ram()
        return detect_machine(host, ram_limits=_ram_limits(settings, ram.total_bytes)), ()
    document = parse_simulate(simulate)
    usage = owner_folder(settings.state_root / "simulated")
    made = SimulatedMachine(
        document, usage, host=host, ram_limits=_ram_limits(settings, document.ram_bytes)
    )
    return made, made.profiles()


def _ram_limits(settings: StandaloneSettings, total_bytes: int) -> RamLimits:
    def of(amount: MemoryAmount | None) -> int | None:
        return None if amount is None else amount.of(total_bytes)

    policy = settings.memory
    return RamLimits(
        managed_limit_bytes=of(policy.managed_limit),
        free_reserve_bytes=of(policy.free_reserve),
        parked_limit_bytes=of(policy.parked_limit),
    )


def _available_ram() -> int | None:
    try:
        return read_ram().available_bytes
    except MemoryUnreadable:
        return None


def _before_launch(order: LaunchOrder, surroundings: Surroundings) -> None:
    try:
        prepare_launch(order, surroundings)
    except NotPrepared as refused:
        raise LaunchRefused(refused.code, refused.detail, permanent=True) from refused


def _charges(order: LaunchOrder) -> Mapping[str, str]:
    return {} if order.charges is None else charges_env(order.charges)


def _nothing(_: LaunchOrder) -> Mapping[str, str]:
    return {}


def simulation_text(stated: str) -> str:
    """``--simulate FILE``: a path is made absolute, so that it is read from anywhere."""
    if stated.lstrip().startswith("{"):
        return stated
    path = Path(stated)
    return str(path.absolute()) if stated and path.exists() else stated

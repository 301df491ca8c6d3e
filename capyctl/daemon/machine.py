"""Which machine this daemon runs on: the real one, or a simulated one; and its adapters."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from pathlib import Path

import attrs

from capyctl.checkpoints.digest import LocalCheckpoints
from capyctl.checkpoints.sources import FetchPolicy, RemoteSources
from capyctl.checkpoints.sources_space import Space
from capyctl.config.role_settings import MachineSettings, MemoryAmount
from capyctl.contracts.gpus import Machine
from capyctl.contracts.host import LaunchRefused
from capyctl.control.host import LocalHost
from capyctl.daemon.clock import SystemClock
from capyctl.daemon.detecting import detected
from capyctl.daemon.retirements import Retirements
from capyctl.daemon.root import launch_secret, owner_folder
from capyctl.domain.devices import MachineShape, Profile
from capyctl.domain.ids import HostId
from capyctl.domain.launches import Installation, LaunchOrder
from capyctl.engines.families import families
from capyctl.engines.fingerprint import Unfingerprintable
from capyctl.engines.installation_book import InstallationBook
from capyctl.engines.preparation import NotPrepared, prepare_launch
from capyctl.engines.surroundings import Surroundings
from capyctl.gpus.memory import MemoryUnreadable, read_ram
from capyctl.launch.addresses import PortLeases, PortsExhausted
from capyctl.launch.processes import LocalProcesses
from capyctl.launch.strays import MARK, mark_of
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
    retirements: Retirements
    sources: RemoteSources


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


def own_machine(
    settings: MachineSettings,
    simulate: str | None,
    log: Callable[..., None] = lambda *_, **__: None,
    *,
    host_id: HostId | None = None,
    limit: Callable[[MachineShape], MachineShape] = lambda shape: shape,
    raw_logs: bool = False,
) -> OwnMachine:
    """Put the adapters together. Looks at the machine for up to 3 s.

    ``log``: told of an engine whose files have changed, with its profile. ``host_id``: what the
    machine is called in records; its name where that is None. ``limit``: the document's policy.
    ``raw_logs``: engines log everything, and their logs are never served.

    Raises:
        MachineUnusable: see `detected`, and what ``limit`` raises.
        ValueError: the simulation text or a limit does not fit; the message names it.
        OSError: a folder of the state root cannot be used.
    """
    root = settings.state_root
    host_id = HostId(settings.host) if host_id is None else host_id
    machine, profiles = _machine(settings, simulate, host_id)
    shape = limit(machine.shape())
    surroundings = Surroundings(
        state_dir=str(root),
        shape=shape,
        available_bytes=_available_ram,
    )
    processes = LocalProcesses(root)
    first, last = settings.engine_ports
    checkpoints = LocalCheckpoints(
        owner_folder(root / "observation"), trust_declared=settings.trust_declared_digest
    )
    retirements = Retirements(root, now_ms=SystemClock().wall_ms)
    sources = _sources(settings, checkpoints)
    host = LocalHost(
        machine=machine,
        machine_shape=shape,
        processes=processes,
        families=families(surroundings),
        checkpoints=checkpoints,
        sources=sources,
        ports=Ports(first, last),
        secret=launch_secret(root),
        before_launch=BeforeLaunch(
            surroundings=surroundings,
            book=InstallationBook(owner_folder(root / "observation")),
            log=log,
            retirements=retirements,
        ),
        raw_logs=raw_logs,
        extra_env=Marked(state_root=root, simulated=simulate is not None),
    )
    return OwnMachine(
        host=host,
        processes=processes,
        shape=shape,
        simulated_profiles=profiles,
        retirements=retirements,
        sources=sources,
    )


def _sources(settings: MachineSettings, checkpoints: LocalCheckpoints) -> RemoteSources:
    policy = settings.sources
    root = Path(settings.models_root) / (policy.root or ".")
    return RemoteSources(
        space=Space(root=root, max_bytes=policy.max_bytes),
        policy=FetchPolicy(
            huggingface=policy.huggingface,
            http=policy.http,
            plain_http=policy.plain_http,
            allowed_hosts=policy.allowed_hosts,
            endpoint=policy.endpoint,
            token_file=None if policy.token_file is None else Path(policy.token_file),
        ),
        secrets=settings.state_root / "secrets",
        environ=os.environ,
        learn=checkpoints.learn,
    )


def _machine(
    settings: MachineSettings, simulate: str | None, host: HostId
) -> tuple[Machine, tuple[Profile, ...]]:
    if simulate is None:
        return detected(host, lambda total: _ram_limits(settings, total)), ()
    document = parse_simulate(simulate)
    usage = owner_folder(settings.state_root / "simulated")
    made = SimulatedMachine(
        document, usage, host=host, ram_limits=_ram_limits(settings, document.ram_bytes)
    )
    return made, made.profiles()


def _ram_limits(settings: MachineSettings, total_bytes: int) -> RamLimits:
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


@attrs.frozen(kw_only=True)
class BeforeLaunch:
    """What must be true on disk before an engine is launched. Blocks; runs in a thread."""

    surroundings: Surroundings
    book: InstallationBook
    log: Callable[..., None]
    retirements: Container[str] = ()
    """Profiles that are being removed."""

    def __call__(self, order: LaunchOrder) -> Installation | None:
        """What the engine's files are. Raises LaunchRefused."""
        if order.engine.profile in self.retirements:
            detail = f"profile `{order.engine.profile}` is being removed, so nothing starts on it"
            raise LaunchRefused("profile_retiring", detail, permanent=True)
        try:
            prepare_launch(order, self.surroundings)
        except NotPrepared as refused:
            raise LaunchRefused(refused.code, refused.detail, permanent=True) from refused
        engine = order.engine
        if engine.direct:
            return None
        try:
            looked = self.book.look(
                engine.profile,
                revision=engine.profile_revision,
                family=engine.family,
                executable=engine.executable[0],
            )
        except Unfingerprintable as problem:
            self._unknown(order, str(problem))
            return None
        if looked.changed is None:
            return looked.installation
        if engine.installation_drift == "refuse":
            detail = f"{looked.changed}; register `{engine.profile}` again to accept that"
            raise LaunchRefused("installation_drift", detail, permanent=True)
        if looked.installation.flag:
            self.log("installation_drift", profile=engine.profile, changed=looked.changed)
        return looked.installation

    def _unknown(self, order: LaunchOrder, problem: str) -> None:
        if order.engine.installation_drift == "refuse":
            raise LaunchRefused("installation_drift", problem, permanent=True)
        self.log("installation_not_read", profile=order.engine.profile, problem=problem)


@attrs.frozen(kw_only=True)
class Marked:
    """What every engine has in its environment: whose it is, by which it is found again."""

    state_root: Path
    simulated: bool

    def __call__(self, order: LaunchOrder) -> Mapping[str, str]:
        mark = {MARK: mark_of(self.state_root, order.launch)}
        if not self.simulated or order.charges is None:
            return mark
        return {**charges_env(order.charges), **mark}


def simulation_text(stated: str) -> str:
    """``--simulate FILE``: a path is made absolute, so that it is read from anywhere."""
    if stated.lstrip().startswith("{"):
        return stated
    path = Path(stated)
    return str(path.absolute()) if stated and path.exists() else stated

"""What `capyctl init` makes before a role ever runs: its directories, its secrets, its programs."""

from __future__ import annotations

from pathlib import Path

from capyctl.config.credentials import check_state_root, credentials_path, ensure_credentials
from capyctl.daemon.detecting import detected
from capyctl.daemon.root import owner_folder
from capyctl.domain.devices import MachineShape
from capyctl.domain.ids import HostId
from capyctl.engines.runtime_dir import ensure_runtime
from capyctl.ledger.limits import RamLimits
from capyctl.simulated.document import parse_simulate
from capyctl.simulated.machine import SimulatedMachine


def prepare_root(kind: str, state_root: Path) -> dict[str, Path]:
    """Make a state root for a server or a host; what was made, by its name. Blocks on the disk.

    Raises:
        InvalidDocument: the state root cannot be trusted.
        OSError: it cannot be made.
    """
    check_state_root(state_root)
    owner_folder(owner_folder(state_root) / "identity")
    if kind == "server":
        ensure_credentials(state_root, "server")
        return {"credentials": credentials_path(state_root, "server")}
    return {"runtime_dir": ensure_runtime(state_root).path}


def look_at_machine(state_root: Path, simulate: str | None) -> MachineShape:
    """This machine, or the simulated one that ``simulate`` describes, with derived limits.

    Raises:
        MachineUnusable: it is of a kind that this release does not run on, or cannot be read.
        ValueError: the simulation text does not describe a machine.
        OSError: the state root cannot be used.
    """
    host = HostId("new")
    if simulate is None:
        return detected(host, lambda _: RamLimits()).shape()
    usage = owner_folder(owner_folder(state_root) / "simulated")
    return SimulatedMachine(parse_simulate(simulate), usage, host=host).shape()

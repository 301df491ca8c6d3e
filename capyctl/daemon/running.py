"""A role's process: its log, its state root, and the exit status of a start that is refused."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from capyctl.config.credentials import FILES, credentials_path
from capyctl.config.owner_files import write_owner_file
from capyctl.config.problems import InvalidDocument
from capyctl.config.role_document import Given, Role, find_state_root, generate_document
from capyctl.config.role_settings import RoleSettings
from capyctl.daemon.clock import SystemClock
from capyctl.daemon.descriptors import raise_limit
from capyctl.daemon.detecting import MachineUnusable
from capyctl.daemon.garbage import look_seldom
from capyctl.daemon.naming import IN_USE, UNAVAILABLE, AddressRefused
from capyctl.daemon.root import StateRootBusy, held_root, owner_folder
from capyctl.store.errors import StoreUnusable
from capyctl.telemetry.forwarding import forwarded
from capyctl.telemetry.log import Log

EXIT_OK = 0
EXIT_CONFIG = 2
EXIT_NO_ROOM = 4
EXIT_UNSUPPORTED = 5
EXIT_TOPOLOGY = 11
EXIT_INTERNAL = 13
EXIT_REVOKED = 14
_EXITS = {
    "internal": EXIT_INTERNAL,
    # Not among those after which a service manager gives up: both pass, at boot above all.
    IN_USE: EXIT_NO_ROOM,
    UNAVAILABLE: EXIT_NO_ROOM,
    "unsupported_gpu_topology": EXIT_UNSUPPORTED,
    "topology_unknown": EXIT_TOPOLOGY,
    "store_from_newer_version": EXIT_UNSUPPORTED,
    "host_revoked": EXIT_REVOKED,
}


_WRITABLE = (
    f"; capyctl writes to its state directory: make it writable for user {os.geteuid()}, or name "
    "another one with --state-dir"
)
_IN_THE_WAY = "; move it away: capyctl makes what belongs there"
_FULL = "; free some space on that disk"
_ADVICE = {
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _WRITABLE),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST), _IN_THE_WAY),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL),
}


class RoleRefused(Exception):
    """The role cannot run, or not any more, and a restart would not help. ``code`` is stable."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def run_role(kind: str, log_format: str | None, serve: Callable[[Log], None]) -> int:
    """Run a role until it ends; the exit status.

    ``log_format``: ``text``, ``json`` or None for text on a terminal.
    """
    as_json = None if log_format is None else log_format == "json"
    log = Log(sys.stderr, role=kind, clock_wall_ms=SystemClock().wall_ms, as_json=as_json)
    look_seldom()
    raise_limit()
    with forwarded(log):
        try:
            serve(log)
        except Exception as raised:
            status = _refusal(log, _alone(raised))
            if status is None:
                raise
            return status
    return EXIT_OK


def _alone(problem: Exception) -> Exception:
    """The one that a nursery raised, where it is one."""
    while isinstance(problem, ExceptionGroup) and len(problem.exceptions) == 1:
        problem = problem.exceptions[0]
    return problem


def _refusal(log: Log, problem: Exception) -> int | None:
    """The exit status for what a person can see to; None for a bug."""
    match problem:
        case InvalidDocument():
            return _refused(log, problem.problem.code, str(problem))
        case AddressRefused() | RoleRefused() | MachineUnusable() | StoreUnusable():
            return _refused(log, problem.code, str(problem))
        case StateRootBusy() | ValueError():
            return _refused(log, "invalid_config", str(problem))
        case OSError():
            return _refused(log, "internal", _os_problem(problem))
    return None


def given_by(flags: Mapping[str, str], sets: Sequence[str]) -> tuple[Path, Given]:
    """The state root, and what a role of this process was started with.

    Raises:
        InvalidDocument: see `find_state_root`.
    """
    env = os.environ
    stated = flags.get("--config") or env.get("CAPYCTL_CONFIG")
    config_path = Path(stated).absolute() if stated else None
    root = find_state_root(flags, env, config_path)
    return root, Given(flags=flags, env=env, sets=sets, config_path=config_path)


def check_root_is_free(kind: str, root: Path) -> None:
    """Whether this role may run here. What another one left, its engines above all, would be
    nobody's.

    Raises:
        RoleRefused: the state root is another role's.
    """
    if kind == "host":
        served = (root / "srv.sqlite3").exists()
        other = next((r for r in FILES if served and credentials_path(root, r).exists()), None)
    else:
        other = "host" if (root / "identity" / "host.json").exists() else None
    if other is not None:
        raise RoleRefused(
            "invalid_config",
            f"{root} is the state directory of a {other} role: start that one with `capyctl start "
            f"{other}`, or choose another --state-dir",
        )


def keep_document(role: Role[Any], given: Given, settings: RoleSettings) -> None:
    """Write the built-in document where the role was started without any. Blocks."""
    if given.config_path is None and not settings.document_path.exists():
        owner_folder(settings.state_root)
        generate_document(role, settings.state_root)


@contextlib.contextmanager
def held_role(kind: str, settings: RoleSettings, given: Given) -> Iterator[None]:
    """Hold the state root for this role alone, and say in it which one and by what document.

    Raises:
        StateRootBusy: another role holds it.
        OSError: it cannot be made or written.
    """
    with held_root(settings.state_root):
        run = owner_folder(settings.state_root / "run")
        write_owner_file(run / "role", kind + "\n")
        if given.config_path is None:
            (run / "document").unlink(missing_ok=True)
        else:
            write_owner_file(run / "document", f"{given.config_path}\n")
        yield


def _refused(log: Log, code: str, message: str) -> int:
    log.error("start_refused", code=code, message=message)
    return _EXITS.get(code, EXIT_CONFIG)


def _os_problem(problem: OSError) -> str:
    where, why = problem.filename, problem.strerror or str(problem)
    if not isinstance(where, str) or not where.startswith("/"):
        return f"{where}: {why}" if where else why
    # Not `path: why`: of a path that ends in `secret` the log would take why for the secret.
    return f"{where} cannot be used ({why}){_ADVICE.get(problem.errno or 0, '')}"

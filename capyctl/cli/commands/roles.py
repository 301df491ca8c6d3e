"""init and start of the roles: a role that is started takes over this process."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from capyctl.cli.call import Call
from capyctl.cli.failure import CommandFailed
from capyctl.cli.paths import path_of, path_refused
from capyctl.cli.refusing import documents_refused
from capyctl.cli.render import summary
from capyctl.cli.role import explicit_config
from capyctl.cli.role_flags import FLAGS, destination

if TYPE_CHECKING:
    from capyctl.domain.devices import MachineShape


def init_server(call: Call) -> int:
    """`init server`"""
    from capyctl.config.new_documents import new_server_document

    state_root = call.state_root()
    with documents_refused():
        _write(call, "server", new_server_document(state_root, call.options.set))
    return 0


def init_host(call: Call) -> int:
    """`init host`"""
    from capyctl.config.new_documents import new_host_document

    state_root = call.state_root()
    name = call.options.name or socket.gethostname() or "host"
    with documents_refused():
        shape = _machine(call, state_root)
        text = new_host_document(state_root, name=name, shape=shape, sets=call.options.set)
        _write(call, "host", text)
    return 0


def start_standalone(call: Call) -> int:
    """`start standalone`. Returns when the role ends."""
    from capyctl.daemon.serve import run_standalone

    given = given_flags(call, "standalone")
    with second_signal_told():
        return run_standalone(given, call.options.set, call.options.simulate, _log_format(call))


def start_server(call: Call) -> int:
    """`start server`. Returns when the role ends."""
    from capyctl.daemon.serve_server import run_server

    given = given_flags(call, "server")
    with second_signal_told():
        return run_server(given, call.options.set, _log_format(call))


def start_host(call: Call) -> int:
    """`start host`. Returns when the role ends."""
    from capyctl.daemon.serve_host import run_host

    given = given_flags(call, "host")
    with second_signal_told():
        return run_host(given, call.options.set, call.options.simulate, _log_format(call))


@contextlib.contextmanager
def second_signal_told() -> Iterator[None]:
    """The first signal ends a role in order; one that comes after it may cut that short."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandFailed(
            "interrupted", "a second signal cut the end short; engines run on"
        ) from None


def given_flags(call: Call, kind: str) -> dict[str, str]:
    """The flags that were given, by name with dashes; a switch has the value ``true``."""
    found: dict[str, str] = {}
    for flag in ("--config", "--state-dir", *(one.name for one in FLAGS[kind])):
        value = call.option(destination(flag))
        if value is not None and value is not False:
            found[flag] = "true" if value is True else str(value)
    return found


def _log_format(call: Call) -> str | None:
    """None: text on a terminal, JSON lines elsewhere."""
    return "json" if call.wants_json else call.option("output")


def _write(call: Call, kind: str, text: str) -> None:
    """Put the document there, and make what belongs to the role.

    Raises:
        CommandFailed: ``invalid_request``: there is one already; it is left as it is.
        InvalidDocument: the state root cannot be trusted.
    """
    from capyctl.config.credentials import check_state_root
    from capyctl.config.owner_files import write_new_owner_file
    from capyctl.config.role_document import default_document_path
    from capyctl.daemon.preparing import prepare_root

    state_root = call.state_root()
    stated = call.options.output or explicit_config(call)
    path = Path(stated).absolute() if stated else default_document_path(state_root, kind)
    if path.suffix not in (".yaml", ".yml"):
        raise CommandFailed("usage", f"--output: {path} does not end in .yaml or .yml")
    check_state_root(state_root)
    is_inside = path.is_relative_to(state_root)
    prepared = {}
    if is_inside:
        with path_of("--state-dir", state_root):
            prepared = prepare_root(kind, state_root)
    with path_of("--output", path):
        is_new = write_new_owner_file(path, text)
    if not is_new:
        raise CommandFailed(
            "invalid_request", f"{path} is there already; edit it, or name another with --output"
        )
    if not is_inside:
        try:
            with path_of("--state-dir", state_root):
                prepared = prepare_root(kind, state_root)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    made = {name: str(place) for name, place in prepared.items()}
    shown = [(_SHOWN[name], place) for name, place in made.items()]
    value = {"document": str(path), "state_dir": str(state_root), **made}
    call.show(value, summary(f"Wrote {path}", [("State directory", state_root), *shown]))


_SHOWN = {"credentials": "Credentials", "runtime_dir": "Runtime directory"}


def _machine(call: Call, state_root: Path) -> MachineShape:
    """What the host's limits are derived from."""
    from capyctl.daemon.detecting import MachineUnusable
    from capyctl.daemon.preparing import look_at_machine

    try:
        return look_at_machine(state_root, call.options.simulate)
    except MachineUnusable as problem:
        raise CommandFailed(problem.code, problem.text) from problem
    except ValueError as problem:
        raise CommandFailed("invalid_request", f"--simulate: {problem}") from problem
    except OSError as problem:
        raise path_refused(problem, option="--state-dir", path=state_root) from problem

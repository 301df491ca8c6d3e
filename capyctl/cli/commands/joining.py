"""`join host`: makes this machine a host of the server that a join file names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from capyctl.cli.call import Call
from capyctl.cli.failure import CommandFailed
from capyctl.cli.paths import path_of, path_refused
from capyctl.cli.refusing import documents_refused
from capyctl.cli.render import summary
from capyctl.cli.role import role_document

if TYPE_CHECKING:
    from capyctl.link.identity import HostIdentity


def join(call: Call) -> int:
    """`join host`"""
    from capyctl.config.credentials import check_state_root
    from capyctl.config.host_settings import HOST, load_host
    from capyctl.config.role_document import Given

    options = call.options
    state_root = call.state_root()
    given = Given(
        env=call.here.environ,
        sets=options.set,
        config_path=role_document(call, state_root, HOST.kind),
    )
    with documents_refused():
        settings = load_host(state_root, given)
        check_state_root(state_root)
    identity = _joined(
        state_root / "identity",
        Path(options.join_file).absolute(),
        host_name=settings.host,
        recovers=bool(options.recover),
    )
    value = {
        "host_id": str(identity.host),
        "name": identity.name,
        "server_id": identity.server_id,
        "control_address": identity.control_address,
        "recovered": bool(options.recover),
    }
    call.show(
        value,
        summary(
            f"{identity.name} is back" if options.recover else f"Joined as {identity.name}",
            [
                ("Host ID", identity.host),
                ("Server", identity.control_address),
                ("Then", "capyctl start host (again, where it runs)"),
            ],
        ),
    )
    return 0


def _joined(folder: Path, file: Path, *, host_name: str, recovers: bool) -> HostIdentity:
    from functools import partial

    import trio

    from capyctl.link.invitations import JoinRefused
    from capyctl.link.joining import join as redeem
    from capyctl.link.joining import open_join_file

    try:
        with path_of("--join-file", file):
            opened = open_join_file(file)
        joining = partial(redeem, folder, opened, host_name=host_name, recovers=recovers)
        return trio.run(joining)
    except JoinRefused as refused:
        raise CommandFailed(refused.code, refused.message) from refused
    except OSError as problem:
        raise path_refused(problem, path=folder) from problem

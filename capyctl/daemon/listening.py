"""The listeners of a role that serves: bound before anything else, closed whatever happens."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator

import attrs
import trio

from capyctl.api.serve import open_loopback
from capyctl.config.owner_files import write_owner_file
from capyctl.config.role_settings import Address, MachineSettings, ServingSettings
from capyctl.daemon.naming import Listening, naming
from capyctl.daemon.root import owner_folder
from capyctl.dataplane.listener import bind


@attrs.frozen(kw_only=True)
class Bound:
    """Where inference and management are served; nobody accepts on them yet."""

    inference: socket.socket
    management: list[trio.SocketListener]


@contextlib.asynccontextmanager
async def bound(settings: ServingSettings) -> AsyncIterator[Bound]:
    """Both listeners; a start that fails before it serves closes what it has bound.

    Raises:
        AddressRefused: an address cannot be had; it and its setting are named.
    """
    with contextlib.ExitStack() as opened:
        block = "server." if isinstance(settings, MachineSettings) else ""
        setting = f"{block}listeners.inference.bind"
        with naming(settings.inference, Listening(setting=setting, flag="--listen")):
            inference = bind(settings.inference.host, settings.inference.port)
        opened.enter_context(inference)
        setting = f"{block}listeners.management.bind"
        with naming(settings.management, Listening(setting=setting, flag="--management-listen")):
            listeners = await open_loopback(settings.management.host, settings.management.port)
        for listener in listeners:
            opened.callback(listener.socket.close)
        yield Bound(inference=inference, management=listeners)


def address_of_socket(listening: socket.socket | trio.socket.SocketType) -> Address:
    host, port = listening.getsockname()[:2]
    return Address(host=host, port=port)


def record_addresses(settings: ServingSettings, *, management: Address, inference: Address) -> None:
    """Write where both listeners are and whether inference asks for the key, for commands and
    controllers. Blocks.

    Raises:
        OSError: it cannot be written.
    """
    run = owner_folder(settings.state_root / "run")
    write_owner_file(run / "management-address", f"{management}\n")
    write_owner_file(run / "inference-address", f"{inference}\n")
    authentication = "api_key" if settings.inference_key_required else "none"
    write_owner_file(run / "inference-authentication", f"{authentication}\n")

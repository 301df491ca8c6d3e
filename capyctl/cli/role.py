"""Which role a command talks to: its state root, its management address and its credentials."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from capyctl.cli.call import Call
from capyctl.cli.failure import CommandFailed

DEFAULT_ADDRESS = "127.0.0.1:7443"
ADDRESS_VARIABLE = "CAPYCTL_MANAGEMENT_ADDR"
FILE_MAX_BYTES = 4096
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]/]+):([0-9]{1,5})")


@attrs.frozen(kw_only=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen(kw_only=True)
class Role:
    """The role that commands talk to."""

    state_root: Path
    address: Address
    address_source: str
    """Where the address is from, for messages."""
    token: str = attrs.field(repr=False)
    api_key: str = attrs.field(repr=False)


def find_role(call: Call) -> Role:
    """The role under the state root that the command's options and variables name.

    Raises:
        CommandFailed: ``management_unavailable`` where no role has served yet or its
            credentials cannot be read; ``invalid_config`` for an address off loopback.
    """
    state_root = find_state_root(call)
    secrets = read_credentials(state_root)
    text, source = _stated_address(call, state_root)
    return Role(
        state_root=state_root,
        address=parse_address(text, source),
        address_source=source,
        token=secrets["admin_token"],
        api_key=secrets["api_key"],
    )


def find_state_root(call: Call) -> Path:
    """``--state-dir``, ``CAPYCTL_STATE_DIR``, ``state_dir`` of an explicit document, then the
    default below ``$XDG_STATE_HOME`` or the home directory."""
    environ = call.here.environ
    stated = call.option("state_dir") or environ.get("CAPYCTL_STATE_DIR")
    config = explicit_config(call)
    if not stated and config is not None:
        stated = read_document(config).get("state_dir")
    if stated:
        text = expanded(str(stated), environ)
        if not text.startswith("/"):
            raise CommandFailed("invalid_config", f"state_dir: {stated} is not an absolute path")
        return Path(text)
    base = environ.get("XDG_STATE_HOME") or expanded("~/.local/state", environ)
    return Path(base) / "capyctl"


def explicit_config(call: Call) -> Path | None:
    """The document that ``--config`` or ``CAPYCTL_CONFIG`` names."""
    stated = call.option("config") or call.here.environ.get("CAPYCTL_CONFIG")
    return Path(stated).absolute() if stated else None


def expanded(path: str, environ: Mapping[str, str]) -> str:
    """A leading ``~/`` against the caller's home."""
    if not path.startswith("~/"):
        return path
    home = environ.get("HOME")
    if not home:
        raise CommandFailed("invalid_config", f"{path}: HOME is not set; write an absolute path")
    return str(Path(home) / path[2:])


def parse_address(text: str, source: str) -> Address:
    """A loopback address with a port: the token is sent nowhere else.

    Raises:
        CommandFailed: ``invalid_config``, naming ``source``.
    """
    found = _ADDRESS.fullmatch(text.strip())
    try:
        if found is None or int(found[2]) > 65535:
            raise ValueError
        host = "127.0.0.1" if found[1] == "localhost" else found[1].strip("[]")
        if not ipaddress.ip_address(host).is_loopback:
            raise CommandFailed(
                "invalid_config",
                f"{source}: {text.strip()} is not a loopback address; the admin token is sent to "
                "this machine only",
            )
    except ValueError:
        raise CommandFailed(
            "invalid_config", f"{source}: expected an address such as {DEFAULT_ADDRESS}"
        ) from None
    return Address(host=host, port=int(found[2]))


def read_credentials(state_root: Path) -> dict[str, str]:
    """``api_key`` and ``admin_token`` of the role under a state root.

    Raises:
        CommandFailed: ``management_unavailable``, saying what to do.
    """
    path = state_root / "identity" / "credentials"
    try:
        with path.open("rb") as file:
            text = file.read(FILE_MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        raise CommandFailed(
            "management_unavailable",
            f"no role has run with the state directory {state_root}: start one with "
            "`capyctl start standalone`, or name its directory with --state-dir",
        ) from None
    except OSError as problem:
        raise CommandFailed(
            "management_unavailable",
            f"{path}: {problem.strerror}; run this command as the user that runs capyctl",
        ) from problem
    found = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if not found.get("api_key") or not found.get("admin_token"):
        raise CommandFailed(
            "management_unavailable", f"{path} does not hold the lines api_key: and admin_token:"
        )
    return found


def read_document(path: Path) -> Mapping[str, Any]:
    """A YAML or JSON document.

    Raises:
        CommandFailed: ``invalid_config``, naming the file and what is wrong with it.
    """
    from capyctl.config.problems import InvalidDocument
    from capyctl.config.yaml import read_text, read_yaml

    try:
        return read_yaml(read_text(path, what="document"), what="document", name=str(path))
    except InvalidDocument as problem:
        raise CommandFailed(
            "invalid_config", str(problem), details={"path": problem.problem.path}
        ) from problem


def _stated_address(call: Call, state_root: Path) -> tuple[str, str]:
    stated = call.here.environ.get(ADDRESS_VARIABLE)
    if stated:
        return stated, ADDRESS_VARIABLE
    record = state_root / "run" / "management-address"
    try:
        with record.open("rb") as file:
            return file.read(FILE_MAX_BYTES).decode(errors="replace").strip(), str(record)
    except OSError:
        pass
    explicit = explicit_config(call)
    document = explicit or state_root / "config" / "standalone.yaml"
    if document.exists():
        bind = _bind_of(read_document(document))
        if bind is not None:
            return bind, str(document)
    return DEFAULT_ADDRESS, "the default"


def _bind_of(document: Mapping[str, Any]) -> str | None:
    here: Any = document
    for name in ("server", "listeners", "management", "bind"):
        here = here.get(name) if isinstance(here, Mapping) else None
    return here if isinstance(here, str) else None

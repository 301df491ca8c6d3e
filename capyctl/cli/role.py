"""Which role a command talks to: its state root, its management address and its credentials."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from capyctl.cli.call import Call
from capyctl.cli.failure import CommandFailed

SERVING = ("server", "standalone")
HOST = "host"
CREDENTIALS = {"standalone": "credentials", "server": "server-credentials.json"}
HOST_IDENTITY = "host.json"
DEFAULT_ADDRESS = "127.0.0.1:7443"
ROOT_VARIABLE = "CAPYCTL_STATE_DIR"
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

    kind: str
    """``standalone`` or ``server``."""
    state_root: Path
    address: Address
    address_source: str
    """Where the address is from, for messages."""
    state_root_source: str = "--state-dir"
    """Likewise."""
    token: str = attrs.field(repr=False)
    api_key: str = attrs.field(repr=False)


def find_role(call: Call) -> Role:
    """The role under the state root that the command's options and variables name.

    An explicit document says which; a server or a standalone role goes before a host on the same
    root. Where both of these have been there, it is the one that answers.

    Raises:
        CommandFailed: ``management_unavailable`` where no role has served yet or its
            credentials cannot be read; ``invalid_config`` for an address off loopback;
            ``wrong_machine`` on a host; ``role_ambiguous`` when two roles could be meant.
    """
    state_root = find_state_root(call)
    stated = _stated_kind(call)
    found = kinds_of(state_root)
    serving = [kind for kind in SERVING if kind in found]
    if stated == HOST or (stated is None and not serving and HOST in found):
        raise wrong_machine(state_root)
    if stated is None and len(serving) > 1:
        return _answering(call, state_root)
    kind = stated or (serving[0] if serving else SERVING[0])
    return _role(call, state_root, kind)


def kinds_of(state_root: Path) -> list[str]:
    """The roles that have been under this state root."""
    identity = state_root / "identity"
    found = [kind for kind in SERVING if (identity / CREDENTIALS[kind]).exists()]
    marks = (identity / HOST_IDENTITY, state_root / "config" / "host.yaml")
    if any(mark.exists() for mark in marks) or recorded(state_root, "role") == HOST:
        found.append(HOST)
    return found


def recorded(state_root: Path, name: str) -> str | None:
    """A line that the role which runs here, or ran last, left about itself."""
    try:
        with (state_root / "run" / name).open("rb") as file:
            return file.read(FILE_MAX_BYTES).decode(errors="replace").strip() or None
    except OSError:
        return None


def wrong_machine(state_root: Path) -> CommandFailed:
    """A host has nothing that this command could ask."""
    server = recorded(state_root, "server-address")
    where = f", of the server at {server}" if server else ""
    return CommandFailed(
        "wrong_machine",
        f"{state_root} belongs to a host{where}: a host has no management API. Run this command on "
        "the server machine",
    )


def _stated_kind(call: Call) -> str | None:
    config = explicit_config(call)
    kind = None if config is None else read_document(config).get("kind")
    return kind if kind in (*SERVING, HOST) else None


def _role(call: Call, state_root: Path, kind: str) -> Role:
    secrets = read_credentials(state_root, kind, source=state_root_source(call))
    text, source = _stated_address(call, state_root, kind)
    return Role(
        kind=kind,
        state_root=state_root,
        address=parse_address(text, source),
        address_source=source,
        state_root_source=state_root_source(call),
        token=secrets["admin_token"],
        api_key=secrets["api_key"],
    )


def _answering(call: Call, state_root: Path) -> Role:
    """Of the two, the one whose token is taken."""
    from capyctl.cli.client import Client

    for kind in SERVING:
        role = _role(call, state_root, kind)
        try:
            Client(role, call.here).get("/snapshot")
        except CommandFailed as failure:
            if failure.code in ("unauthorized", "management_unavailable"):
                continue
        return role
    raise CommandFailed(
        "role_ambiguous",
        f"a server and a standalone role have both been under {state_root}, and neither answers: "
        "name the document of one with --config, or start it",
    )


def find_state_root(call: Call) -> Path:
    """``--state-dir``, ``CAPYCTL_STATE_DIR``, ``state_dir`` of an explicit document, then the
    default below ``$XDG_STATE_HOME`` or the home directory."""
    environ = call.here.environ
    stated, source = _stated_root(call)
    if stated:
        text = expanded(stated, environ)
        if not text.startswith("/"):
            raise CommandFailed("invalid_config", f"{source}: {stated} is not an absolute path")
        return Path(text)
    base = environ.get("XDG_STATE_HOME") or expanded("~/.local/state", environ)
    return Path(base) / "capyctl"


def state_root_source(call: Call) -> str:
    """Where the state root is from, for messages."""
    return _stated_root(call)[1]


def _stated_root(call: Call) -> tuple[str | None, str]:
    environ = call.here.environ
    stated = call.option("state_dir")
    if stated:
        return str(stated), "--state-dir"
    if environ.get(ROOT_VARIABLE):
        return environ[ROOT_VARIABLE], ROOT_VARIABLE
    config = explicit_config(call)
    stated = None if config is None else read_document(config).get("state_dir")
    if stated:
        return str(stated), f"state_dir of {config}"
    return None, "the default" + (", by XDG_STATE_HOME" if environ.get("XDG_STATE_HOME") else "")


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


def role_document(call: Call, state_root: Path, kind: str | None = None) -> Path | None:
    """The role's document, where it is not the default one: explicit, or that of the role that
    runs here or ran last, if that is one of ``kind``."""
    explicit = explicit_config(call)
    if explicit is not None:
        return explicit
    if kind is not None and recorded(state_root, "role") not in (None, kind):
        return None
    text = recorded(state_root, "document")
    return None if text is None or not Path(text).exists() else Path(text)


def read_credentials(state_root: Path, kind: str, *, source: str = "--state-dir") -> dict[str, str]:
    """``api_key`` and ``admin_token`` of a role under a state root.

    ``source``: where the state root is from.

    Raises:
        CommandFailed: ``management_unavailable``, saying what to do.
    """
    path = state_root / "identity" / CREDENTIALS[kind]
    try:
        with path.open("rb") as file:
            text = file.read(FILE_MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        raise CommandFailed(
            "management_unavailable",
            f"no role has run with the state directory {state_root} ({source}): start one with "
            "`capyctl start standalone` (`start server` for several machines), or name its "
            "directory with --state-dir",
        ) from None
    except OSError as problem:
        raise CommandFailed(
            "management_unavailable",
            f"{path} (state directory from {source}) cannot be read ({problem.strerror}); run this "
            "command as the user that runs capyctl",
        ) from problem
    found = _object(text) if path.suffix == ".json" else _lines(text)
    if not found.get("api_key") or not found.get("admin_token"):
        raise CommandFailed(
            "management_unavailable",
            f"{path} does not hold the lines api_key: and admin_token:"
            if path.suffix != ".json"
            else f"{path} does not hold api_key and admin_token",
        )
    return found


def _lines(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)


def _object(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


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


def _stated_address(call: Call, state_root: Path, kind: str) -> tuple[str, str]:
    stated = call.here.environ.get(ADDRESS_VARIABLE)
    if stated:
        return stated, ADDRESS_VARIABLE
    text = recorded(state_root, "management-address")
    if text is not None:
        return text, str(state_root / "run" / "management-address")
    document = explicit_config(call) or state_root / "config" / f"{kind}.yaml"
    if document.exists():
        bind = _bind_of(read_document(document), kind)
        if bind is not None:
            return bind, str(document)
    return DEFAULT_ADDRESS, "the default"


def _bind_of(document: Mapping[str, Any], kind: str) -> str | None:
    here: Any = document.get("server") if kind == "standalone" else document
    for name in ("listeners", "management", "bind"):
        here = here.get(name) if isinstance(here, Mapping) else None
    return here if isinstance(here, str) else None

"""engine detect, add, list and remove: which engines this machine's role may run."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capyctl.cli.call import Call
from capyctl.cli.control_socket import SOCKET_NAME, ask_role
from capyctl.cli.failure import CommandFailed
from capyctl.cli.render import summary, table
from capyctl.cli.role import kinds_of, role_document
from capyctl.cli.variables import listed, pair_of

if TYPE_CHECKING:
    from capyctl.engines.registration import AddedEngine

NOT_RUNNING = "role_not_running"
PUBLISHED = "published"
_WHEN = {PUBLISHED: "yes", NOT_RUNNING: "when capyctl starts"}
_DETECTED = ("ENGINE", "VERSION", "CUSTOM", "ENVIRONMENT", "SOURCE")
_REGISTERED = (
    "PROFILE", "SOURCE", "ENGINE", "VERSION", "CUSTOM", "DEEP PARK", "PUBLISHED", "DEPLOYMENTS",
)  # fmt: skip
_ON_HOSTS = (
    "HOST", "PROFILE", "ENGINE", "VERSION", "CUSTOM", "DEEP PARK", "STATE", "DEPLOYMENTS",
)  # fmt: skip


def detect(call: Call) -> int:
    """`engine detect`"""
    rows = _detected(call, call.options.path)
    cells = [tuple(row.values()) for row in rows]
    text = (
        table(_DETECTED, cells)
        if rows
        else "No engine was found; name one: capyctl engine add PATH"
    )
    call.show({"engines": rows}, text)
    return 0


def add(call: Call) -> int:
    """`engine add`"""
    from capyctl.config.engine_documents import YamlEngineDocuments
    from capyctl.engines.registration import RegistrationRefused, add_engine

    options, environ = call.options, call.here.environ
    path = options.path or _chosen(call)
    env = dict(
        pair_of(text, "--env") for text in options.env or listed(environ, "CAPYCTL_ENGINE_ADD_ENV")
    )
    try:
        added = add_engine(
            Path(path),
            engines_file=_engines_file(call),
            documents=YamlEngineDocuments(),
            name=options.name,
            deep_park=options.deep_park,
            drift=options.drift,
            args=options.arg,
            approved_options=options.approve_option,
            approved_paths=options.approve_path,
            env=env,
            approved_env=options.approve_env or listed(environ, "CAPYCTL_APPROVE_ENV"),
            cuda_home=environ.get("CUDA_HOME"),
            owner=_owner(call),
        )
    except RegistrationRefused as refused:
        raise CommandFailed(refused.code, refused.message) from refused
    state_root = call.state_root()
    answer = ask_role(state_root, {"action": "reload"})
    published = NOT_RUNNING if answer is None else PUBLISHED
    call.show({**_added(added), "published": published}, _added_text(added, published))
    if answer is None:
        call.say(f"Saved in {added.engines_file}; capyctl takes it up when it starts")
        call.say(f"It does not run now (nothing listens on {state_root / SOCKET_NAME})")
    return 0


def list_registered(call: Call) -> int:
    """`engine list`"""
    from capyctl.config.engine_documents import YamlEngineDocuments
    from capyctl.engines.registration import RegistrationRefused, list_engines

    try:
        registered = list_engines(_engines_file(call), YamlEngineDocuments())
    except RegistrationRefused as refused:
        raise CommandFailed(refused.code, refused.message) from refused
    answer = ask_role(call.state_root(), {"action": "list"})
    running = {str(row["profile"]): row for row in _profiles(answer)}
    rows: list[dict[str, Any]] = [
        {
            "profile": one.profile,
            "source": "engines.yaml",
            "engine": one.engine,
            "version": one.version,
            "custom": one.custom,
            "deep_park": one.deep_park,
            "published": _published(answer is not None, running.get(one.profile)),
            "deployments": running.get(one.profile, {}).get("deployments", []),
        }
        for one in registered
    ]
    known = {row["profile"] for row in rows}
    rows += [_from_role(row) for name, row in running.items() if name not in known]
    text = table(_REGISTERED, [tuple(row.values()) for row in rows])
    call.show({"engines": rows}, text if rows else "No engine is registered: engine add PATH")
    return 0


def list_on_hosts(call: Call) -> int:
    """`list engines`"""
    state_root = call.state_root()
    if "server" in kinds_of(state_root):
        rows = _of_hosts(call)
        call.show({"engines": rows}, table(_ON_HOSTS, [tuple(row.values()) for row in rows]))
        return 0
    answer = ask_role(state_root, {"action": "list"})
    if answer is None:
        raise CommandFailed(
            "management_unavailable",
            f"no role listens on {state_root / SOCKET_NAME}; `capyctl engine list` shows what is "
            "registered",
        )
    names = ("profile", "engine", "version", "custom", "deep_park")
    rows = [
        {
            "host": answer.get("host") or socket.gethostname(),
            **{name: row.get(name) for name in names},
            "state": PUBLISHED,
            "deployments": row.get("deployments", []),
        }
        for row in _profiles(answer)
    ]
    call.show({"engines": rows}, table(_ON_HOSTS, [tuple(row.values()) for row in rows]))
    return 0


def _of_hosts(call: Call) -> list[dict[str, Any]]:
    """What every host of a server publishes, as the server knows it."""
    from capyctl.engines.installations import is_custom

    client = call.client()
    rows = []
    for host in client.read("/hosts")["hosts"]:
        for profile in host["profiles"]:
            family, version = str(profile["family"]), str(profile["version"])
            rows.append(
                {
                    "host": host["name"],
                    "profile": profile["name"],
                    "engine": family,
                    "version": version,
                    "custom": is_custom(family, version),
                    "deep_park": profile.get("deep_park"),
                    "state": PUBLISHED if host["state"] == "online" else host["state"],
                    "deployments": profile.get("deployments", []),
                }
            )
    return rows


def remove(call: Call) -> int:
    """`engine remove`"""
    from capyctl.config.engine_documents import YamlEngineDocuments
    from capyctl.engines.registration import RegistrationRefused, list_engines, remove_engine

    options, documents = call.options, YamlEngineDocuments()
    file = _engines_file(call)
    state_root = call.state_root()
    try:
        if options.name in [one.profile for one in list_engines(file, documents)]:
            _retire(call, state_root)
        removed = remove_engine(options.name, engines_file=file, documents=documents)
    except RegistrationRefused as refused:
        raise CommandFailed(refused.code, refused.message) from refused
    answer = ask_role(state_root, {"action": "reload"})
    published = NOT_RUNNING if answer is None else PUBLISHED
    value = {
        "removed": removed.removed,
        "engines_file": str(removed.engines_file),
        "revision": removed.revision,
        "published": published,
    }
    text = summary(
        f"Removed {removed.removed}",
        [
            ("Engines file", f"{removed.engines_file} (revision {removed.revision})"),
            ("Published", _WHEN[published]),
        ],
    )
    call.show(value, text)
    return 0


def _retire(call: Call, state_root: Path) -> None:
    """Nothing new starts on the profile from here on, and nothing runs on it in the end.

    The role keeps that in mind through its own restarts. A profile that something runs on
    stays, unless ``--drain`` stops it first.
    """
    name = call.options.name
    answer = ask_role(state_root, {"action": "retire", "name": name})
    users = [str(user) for user in (answer or {}).get("deployments", [])]
    if not users:
        return
    try:
        if not call.options.drain:
            raise CommandFailed(
                "profile_in_use",
                f"{name} is used by {', '.join(users)}: stop them, or let --drain do it",
                details={"deployments": users},
            )
        from capyctl.cli.commands.draining import stop_all

        stop_all(call, name, users)
    except CommandFailed:
        ask_role(state_root, {"action": "keep", "name": name})
        raise


def _profiles(answer: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The role's profiles, each with whether its version is outside of what was tried."""
    from capyctl.engines.installations import is_custom

    rows = (answer or {}).get("profiles", [])
    return [{**row, "custom": is_custom(str(row["engine"]), str(row["version"]))} for row in rows]


def _engines_file(call: Call) -> Path:
    from capyctl.engines.engines_file import engines_file_path

    config = role_document(call, call.state_root())
    return engines_file_path(None if config is None else str(config), call.here.environ)


def _owner(call: Call) -> tuple[int, int] | None:
    """Whom a new document belongs to when root writes it: the owner of the state directory."""
    if os.geteuid() != 0:
        return None
    try:
        held = call.state_root().stat()
    except OSError:
        return None
    return held.st_uid, held.st_gid


def _detected(call: Call, paths: Iterable[str]) -> list[dict[str, Any]]:
    from capyctl.cli.detection import detect_engines
    from capyctl.engines.installations import is_custom

    return [
        {
            "engine": one.family,
            "version": one.version,
            "custom": is_custom(one.family, one.version) if one.version else None,
            "environment": one.root,
            "source": one.executable,
        }
        for one in detect_engines(call.here.environ, paths)
    ]


def _chosen(call: Call) -> str:
    """One of the detected engines, by a number typed on the terminal."""
    here = call.here
    if not here.is_terminal(here.input) or call.wants_json:
        raise CommandFailed(
            "not_interactive", "name the engine: capyctl engine add PATH (engine detect finds it)"
        )
    rows = _detected(call, ())
    if not rows:
        raise CommandFailed("engine_not_found", "no engine was found; name its path")
    for number, row in enumerate(rows, 1):
        call.say(f"  {number}  {row['engine']} {row['version'] or '-'}  {row['source']}")
    here.err.write(f"Which one (1 to {len(rows)})? ")
    here.err.flush()
    text = here.input.readline().strip()
    if not text.isdecimal() or not 1 <= int(text) <= len(rows):
        raise CommandFailed("usage", f"expected a number from 1 to {len(rows)}")
    return str(rows[int(text) - 1]["source"])


def _published(is_running: bool, listed: dict[str, Any] | None) -> str:
    if not is_running:
        return "unknown"
    if listed is None:
        return "not published"
    return "retiring" if listed.get("retiring") else PUBLISHED


def _from_role(row: dict[str, Any]) -> dict[str, Any]:
    """A profile of the role's own: declared in its document, or of a simulated machine."""
    names = ("profile", "source", "engine", "version", "custom", "deep_park")
    return {
        **{name: row.get(name) for name in names},
        "published": PUBLISHED,
        "deployments": row.get("deployments", []),
    }


def _added(added: AddedEngine) -> dict[str, Any]:
    return {
        "profile": added.profile,
        "engine": added.engine,
        "version": added.version,
        "custom": added.custom,
        "executable": added.executable,
        "fingerprint": {
            "digest": added.fingerprint.digest,
            "version": added.build_fingerprint,
        },
        "deep_park": added.deep_park,
        "deep_park_probe": added.deep_park_probe,
        "cuda_home": added.cuda_home,
        "engines_file": str(added.engines_file),
        "revision": added.revision,
    }


def _added_text(added: AddedEngine, published: str) -> str:
    parks = "on" if added.deep_park else f"off ({added.deep_park_probe})"
    return summary(
        f"Registered {added.profile} ({added.engine} {added.version})",
        [
            ("Executable", added.executable),
            ("Deep park", parks),
            ("CUDA", added.cuda_home or "-"),
            ("Engines file", f"{added.engines_file} (revision {added.revision})"),
            ("Published", _WHEN[published]),
        ],
    )

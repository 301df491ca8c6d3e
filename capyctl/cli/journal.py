"""What a command is about to change, on disk before it is sent, so that it can be sent again.

`<state root>/requests/<ULID>/request.json` holds the exact bytes of every step. The key of a
step is the request's identity and the step's name, so that a repeated command is one change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from capyctl.cli.call import Call
from capyctl.cli.failure import CommandFailed
from capyctl.cli.role import Role
from capyctl.cli.ulids import is_ulid, new_ulid

FOLDER = "requests"
FILE_NAME = "request.json"
REQUESTS_KEPT_MAX = 1000
RECORD_BYTES_MAX = 8 << 20


@attrs.frozen(kw_only=True)
class Step:
    """One change, as it is sent."""

    key: str
    method: str
    path: str
    body: str


class Request:
    """One mutating command under its identity."""

    def __init__(
        self, id: str, path: Path, head: Mapping[str, Any], steps: dict[str, Step]
    ) -> None:
        self.id = id
        self._path = path
        self._head = head
        self._steps = steps

    def stored(self, name: str) -> Step | None:
        """The step of an earlier run of this request."""
        return self._steps.get(name)

    def record(self, name: str, method: str, path: str, fields: Mapping[str, Any]) -> Step:
        """Put a step on disk, instead of one that was refused under the same key.

        Raises:
            CommandFailed: ``internal``: it cannot be written, so nothing is sent.
        """
        body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
        step = Step(key=f"{self.id}-{name}", method=method, path=path, body=body)
        self._steps[name] = step
        self._write()
        return step

    def _write(self) -> None:
        steps = {name: attrs.asdict(step) for name, step in self._steps.items()}
        text = json.dumps({**self._head, "steps": steps}, indent=2, ensure_ascii=False)
        fresh = self._path.with_name(f".{FILE_NAME}.{os.getpid()}")
        try:
            for folder in (self._path.parents[1], self._path.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(fresh, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self._path)
            _flush_folder(self._path.parent)
        except OSError as problem:
            raise CommandFailed(
                "internal", f"{self._path}: {problem.strerror}; nothing was sent"
            ) from problem


def open_request(call: Call, role: Role, intent: Mapping[str, Any]) -> Request:
    """A request of its own, or the one that ``--request-id`` names. Its identity is said.

    Raises:
        CommandFailed: ``invalid_request`` for what is no ULID, ``idempotency_conflict`` when
            the earlier request wanted something else or belonged to another role.
    """
    stated = call.option("request_id")
    if stated is not None and not is_ulid(stated):
        raise CommandFailed("invalid_request", f"--request-id: {stated} is not a ULID")
    id = stated or new_ulid(call.here.wall_ms())
    folder = role.state_root / FOLDER
    path = folder / id / FILE_NAME
    head = {
        "endpoint": str(role.address),
        "token_sha256": hashlib.sha256(role.token.encode()).hexdigest(),
        "intent": dict(intent),
    }
    steps = _read(path, head) if stated is not None else {}
    call.say(f"Request identity: {id} (the same command with --request-id {id} recovers it)")
    if not steps:
        _drop_oldest(folder)
    return Request(id, path, head, steps)


def _read(path: Path, head: Mapping[str, Any]) -> dict[str, Step]:
    try:
        with path.open("rb") as file:
            held = json.loads(file.read(RECORD_BYTES_MAX))
        steps = {str(name): Step(**step) for name, step in held["steps"].items()}
        same = held["intent"] == head["intent"]
        same_role = held["token_sha256"] == head["token_sha256"]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise CommandFailed("internal", f"{path} cannot be read; use a new request") from problem
    if not same_role:
        raise CommandFailed(
            "idempotency_conflict",
            f"{path.parent.name} was a request to another role; use a new one",
        )
    if not same:
        raise CommandFailed(
            "idempotency_conflict",
            f"{path.parent.name} was a different request; repeat that one, or use a new identity",
        )
    return steps


def _drop_oldest(folder: Path) -> None:
    """ULIDs sort by time. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        names = sorted(name for name in os.listdir(folder) if is_ulid(name))
        for name in names[: max(0, len(names) - REQUESTS_KEPT_MAX + 1)]:
            with contextlib.suppress(OSError):
                for held in (folder / name).iterdir():
                    held.unlink()
                (folder / name).rmdir()


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

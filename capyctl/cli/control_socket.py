"""Asks a running role on its control socket: one JSON line there, one JSON line back.

The request has ``action``: ``list`` the profiles, ``reload`` them from the engines document, name
the ``users`` of the profile ``name``, ``retire`` it or ``keep`` it after all, or ``prune_sources``,
with ``apply`` for good. The answer has ``ok``, and its result or ``code`` and ``message``.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capyctl.cli.failure import CommandFailed
from capyctl.domain.sockets import CONTROL_SOCKET, short_path

SOCKET_NAME = CONTROL_SOCKET
ANSWER_S_MAX = 60.0
ANSWER_BYTES_MAX = 1 << 20


def ask_role(
    state_root: Path, request: Mapping[str, Any], *, within_s: float = ANSWER_S_MAX
) -> dict[str, Any] | None:
    """The role's answer; None when no role runs under this state root.

    Raises:
        CommandFailed: what the role refuses, with its code; ``agent_unreachable`` when it
            listens and does not answer, or answers something else.
    """
    path = state_root / SOCKET_NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(within_s)
        try:
            _connect(channel, path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as problem:
            raise _unreachable(path, problem.strerror or "cannot be reached") from problem
        try:
            channel.sendall(json.dumps(request).encode() + b"\n")
            data = _read_all(channel, path)
        except TimeoutError as problem:
            raise _unreachable(
                path, f"no answer within {within_s:g} s; the outcome is not known: ask again"
            ) from problem
        except OSError as problem:
            raise _unreachable(path, problem.strerror or "broke off") from problem
    return _answer(data, path)


def _read_all(channel: socket.socket, path: Path) -> bytes:
    data = b""
    while piece := channel.recv(65536):
        data += piece
        if len(data) > ANSWER_BYTES_MAX:
            raise _unreachable(path, f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    return data


def _answer(data: bytes, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _unreachable(path, "the answer is not a JSON object")
    if found.get("ok") is not True:
        raise CommandFailed(str(found.get("code", "publish_rejected")), str(found.get("message")))
    return found


def _unreachable(path: Path, why: str) -> CommandFailed:
    return CommandFailed("agent_unreachable", f"{path}: {why}")


def _connect(channel: socket.socket, path: Path) -> None:
    """As `connect`, for paths of any length."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        channel.connect(short_path(folder, path.name))
    finally:
        os.close(folder)

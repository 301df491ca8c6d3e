"""``control.sock``: how `capyctl engine` makes a running daemon look at its engines again.

One JSON request and one JSON answer per connection; only this user and root are heard.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import trio

from capyctl.config.problems import InvalidDocument
from capyctl.control.directory import Directory
from capyctl.daemon.publishing import Publishing
from capyctl.daemon.role_actions import RoleAction
from capyctl.domain.sockets import CONTROL_SOCKET, short_path
from capyctl.machines.deployment import EMPTY

REQUEST_BYTES_MAX = 64 * 1024
REQUEST_S_MAX = 5.0
ANSWER_S_MAX = 55.0
"""Just under what the command waits."""
CONNECTIONS_MAX = 8
NAME = CONTROL_SOCKET
_CREDENTIALS = struct.Struct("3i")


@attrs.frozen(kw_only=True, eq=False)
class ControlSocket:
    """Answers ``{"action": "reload"|"list"|"users", "name"?: …}``, and the role's own actions."""

    path: Path
    host: str
    """The machine's name, for people."""
    publishing: Publishing
    users: Callable[[str], list[str]]
    """Names of deployments on a profile that run or hold something."""
    log: Callable[..., None]
    published: Callable[[], None] = lambda: None
    """Told once the profiles were read again."""
    link: Callable[[], str | None] = lambda: None
    """How a host stands with its server; None on a machine that has none."""
    actions: Mapping[str, RoleAction] = attrs.field(factory=dict)
    """What else the role does, by the action's name."""

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; the socket file is removed then."""
        self.path.unlink(missing_ok=True)
        listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        try:
            await self._bind(listening)
            limit = trio.CapacityLimiter(CONNECTIONS_MAX)
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    connection, _ = await listening.accept()
                    nursery.start_soon(self._one, connection, limit)
        finally:
            listening.close()
            self.path.unlink(missing_ok=True)

    async def _bind(self, listening: trio.socket.SocketType) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        before = os.umask(0o177)
        try:
            await listening.bind(short_path(folder))
        finally:
            os.umask(before)
            os.close(folder)
        listening.listen(CONNECTIONS_MAX)

    async def _one(self, connection: trio.socket.SocketType, limit: trio.CapacityLimiter) -> None:
        with connection:
            async with limit:
                with trio.move_on_after(ANSWER_S_MAX):
                    try:
                        await self._converse(connection)
                    except (OSError, trio.TooSlowError) as problem:
                        self.log("control_socket_broke", problem=str(problem))

    async def _converse(self, connection: trio.socket.SocketType) -> None:
        if not _ours(connection):
            return
        data = b""
        with trio.fail_after(REQUEST_S_MAX):
            while not data.endswith(b"\n") and len(data) <= REQUEST_BYTES_MAX:
                piece = await connection.recv(4096)
                if not piece:
                    break
                data += piece
        answer = json.dumps(await self._answer(data)).encode() + b"\n"
        sent = 0
        while sent < len(answer):
            sent += await connection.send(answer[sent:])

    async def _answer(self, data: bytes) -> dict[str, Any]:
        try:
            request = json.loads(data)
            action = request["action"]
        except (ValueError, KeyError, TypeError):
            return {"ok": False, "code": "invalid_request", "message": "not a request"}
        own = self.actions.get(action) if isinstance(action, str) else None
        if own is not None:
            return await own(request)
        match action:
            case "reload":
                return self._reload()
            case "list":
                return {
                    "ok": True,
                    "host": self.host,
                    "link": self.link(),
                    "profiles": self._profiles(),
                }
            case "users":
                return {"ok": True, "deployments": self.users(str(request.get("name")))}
        return {"ok": False, "code": "invalid_request", "message": "unknown action"}

    def _reload(self) -> dict[str, Any]:
        try:
            self.publishing.reload()
        except InvalidDocument as problem:
            return {"ok": False, "code": "publish_rejected", "message": str(problem)}
        self.log("engines_published", profiles=[p.name for p in self.publishing.profiles])
        self.published()
        return {"ok": True, "profiles": self._profiles()}

    def _profiles(self) -> list[dict[str, Any]]:
        return [
            {
                "profile": profile.name,
                "engine": profile.family,
                "version": profile.version,
                "source": profile.source,
                "deep_park": profile.deep_park,
                "deployments": self.users(profile.name),
                "retiring": profile.name in self.publishing.retirements,
            }
            for profile in self.publishing.profiles
        ]


def users_in(directory: Directory, profile: str) -> list[str]:
    """Names of deployments on this profile that run or hold something."""
    return [
        deployment.spec.name
        for deployment in directory.deployments.values()
        if deployment.spec.profile == profile
        and any(
            one.state not in EMPTY for one in directory.instances.get(deployment.id, {}).values()
        )
    ]


def _ours(connection: trio.socket.SocketType) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return uid in (0, os.getuid())

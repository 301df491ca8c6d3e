"""Serves the management API on loopback listeners, and ends it in order."""

from __future__ import annotations

import ipaddress
import logging
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper
from hypercorn.utils import wrap_app

from capyctl.api.app import ManagementApp
from capyctl.api.connection import Connection

_log = logging.getLogger(__name__)
_TELL_EVERY_S = 10.0
"""Between two lines about connections that were closed: thousands may come in a second."""


async def open_loopback(host: str, port: int) -> list[trio.SocketListener]:
    """Listeners on a loopback address; port 0 takes a free one. Close them, or serve them.

    Raises:
        ValueError: ``host`` is no loopback address: this API is never served on another.
        OSError: the port is taken.
    """
    name = "127.0.0.1" if host == "localhost" else host
    try:
        is_loopback = ipaddress.ip_address(name).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ValueError(f"the management API listens on loopback addresses only, not on {host!r}")
    listeners: list[trio.SocketListener] = await trio.open_tcp_listeners(port, host=name)
    return listeners


async def serve_management(
    app: ManagementApp,
    listeners: list[trio.SocketListener],
    *,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``shutdown`` is set; then close streams, let requests end, and return.

    Requests in flight get ``graceful_s``; after that connections and work are cut. Closes the
    listeners. Cancelling cuts everything at once.
    """
    async with trio.open_nursery() as work:
        app.nursery = work
        await app.startup()
        try:
            await _Server(app).run(listeners, shutdown, task_status)
        finally:
            work.cancel_scope.cancel()


class _Server:
    def __init__(self, app: ManagementApp) -> None:
        self._app = app
        self._limits = app.limits
        self._config = _config(_log)
        self._framework: AppWrapper = wrap_app(app, self._config.wsgi_max_body_size, "asgi")
        self._context = WorkerContext(None)
        self._open: set[Connection] = set()
        self._none_open = trio.Event()
        self._told_at_s: float | None = None

    async def run(
        self,
        listeners: list[trio.SocketListener],
        shutdown: trio.Event,
        task_status: trio.TaskStatus[None],
    ) -> None:
        async with trio.open_nursery() as connections:
            try:
                await self._accept(listeners, connections, shutdown, task_status)
                self._app.events.close()
                await self._context.terminated.set()
                with trio.move_on_after(self._limits.graceful_s):
                    await self._wait_none_open()
            finally:
                for connection in tuple(self._open):
                    connection.abort()
                connections.cancel_scope.cancel()

    async def _accept(
        self,
        listeners: list[trio.SocketListener],
        connections: trio.Nursery,
        shutdown: trio.Event,
        task_status: trio.TaskStatus[None],
    ) -> None:
        async with trio.open_nursery() as accepting:
            serve = partial(
                trio.serve_listeners, self._serve_one, listeners, handler_nursery=connections
            )
            await accepting.start(serve)
            task_status.started()
            await shutdown.wait()
            accepting.cancel_scope.cancel()

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        if len(self._open) >= self._limits.connections_max:
            self._tell_full()
            await trio.aclose_forcefully(stream)
            return
        connection = Connection(stream, self._framework, self._config, self._context, self._limits)
        self._open.add(connection)
        try:
            await connection.run()
        except Exception:
            _log.exception("a connection of the management API broke")
        finally:
            self._open.discard(connection)
            self._none_open.set()

    def _tell_full(self) -> None:
        now_s = trio.current_time()
        if self._told_at_s is None or now_s - self._told_at_s >= _TELL_EVERY_S:
            self._told_at_s = now_s
            _log.warning("a connection was closed: %d are open already", len(self._open))

    async def _wait_none_open(self) -> None:
        while self._open:
            self._none_open = trio.Event()
            await self._none_open.wait()


def _config(log: logging.Logger) -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = log
    config.include_server_header = False
    return config

"""The daemon's own parts inside of a test: a store that can be held or broken, limits that can
be small, and the real listener in front."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

from capyctl.api.app import make_app
from capyctl.api.limits import Limits
from capyctl.api.serve import open_loopback, serve_management
from capyctl.config.role_document import generate_document
from capyctl.config.settings import STANDALONE, load_standalone
from capyctl.daemon.assemble import open_daemon
from capyctl.daemon.machine import own_machine
from capyctl.daemon.mirrors import Daemon
from capyctl.telemetry.log import Log
from tests.contract.fleet import Fleet
from tests.contract.speaking import Target
from tests.e2e.daemon import engine_ports, simulation

TOKEN = "admin-token-0123456789abcdef0123456789"
KEY = "inference-key-0123456789abcdef012345"
HELD_S_MAX = 30.0
T = TypeVar("T")


class Store:
    """What `before_commit` does: passes, waits while it is held, or fails once it is broken."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.is_broken = False
        self.waiting = threading.Event()
        """Set once a commit waits."""

    def hold(self) -> None:
        self.waiting.clear()
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def before_commit(self, _: list[Any]) -> None:
        if not self._open.is_set():
            self.waiting.set()
        assert self._open.wait(HELD_S_MAX)
        if self.is_broken:
            raise OSError(28, "No space left on device")


@attrs.frozen(kw_only=True, eq=False)
class Inside:
    target: Target
    fleet: Fleet
    store: Store
    daemon: Daemon
    database: Path

    async def run(self, call: Callable[..., T], *args: Any, **more: Any) -> T:
        """A blocking call of the client, in a thread of its own."""
        return await trio.to_thread.run_sync(partial(call, *args, **more))

    async def wait_held(self) -> None:
        """Until a commit waits for `let_go`."""
        assert await self.run(self.store.waiting.wait, HELD_S_MAX)


@contextlib.asynccontextmanager
async def inside(root: Path, **limits: Any) -> AsyncIterator[Inside]:
    """A daemon with these limits; engines that it starts are the test's to stop."""
    flags = {
        "--state-dir": str(root / "state"),
        "--models-root": str(root / "models"),
        "--engine-ports": engine_ports(),
    }
    (root / "state").mkdir(mode=0o700)
    (root / "models").mkdir()
    generate_document(STANDALONE, root / "state")
    settings = load_standalone(root / "state", config_path=None, flags=flags, env={})
    machine = own_machine(settings, simulation())
    store = Store()
    log = Log(io.StringIO(), role="standalone", clock_wall_ms=lambda: 0, as_json=True)
    async with open_daemon(settings, machine, log, before_commit=store.before_commit) as daemon:
        app = make_app(
            daemon.management, token=TOKEN, clock=daemon.world.clock, limits=Limits(**limits)
        )
        listeners = await open_loopback("127.0.0.1", 0)
        port = listeners[0].socket.getsockname()[1]
        shutdown = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(serve_management, app, listeners, shutdown=shutdown))
            target = Target(
                host="127.0.0.1", port=port, token=TOKEN, api_key=KEY, inference=("127.0.0.1", 1)
            )
            try:
                yield Inside(
                    target=target,
                    fleet=Fleet(target, root / "models"),
                    store=store,
                    daemon=daemon,
                    database=root / "state" / "srv.sqlite3",
                )
            finally:
                store.let_go()
                shutdown.set()
    await machine.processes.aclose()

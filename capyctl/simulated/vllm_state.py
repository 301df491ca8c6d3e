"""What one simulated vLLM knows of itself while it runs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

import trio

from capyctl.simulated.answering import WaitGone
from capyctl.simulated.behaviour import Behaviour
from capyctl.simulated.command_line import Options
from capyctl.simulated.generation import Scheduler
from capyctl.simulated.http_server import Exchange
from capyctl.simulated.local_model import LocalModel
from capyctl.simulated.vllm_sleep import Sleep


class VllmState:
    """Shared by the routes and the program around them. One task writes at a time."""

    def __init__(
        self,
        *,
        options: Options,
        names: tuple[str, ...],
        model: LocalModel,
        behaviour: Behaviour,
        scheduler: Scheduler,
        sleep: Sleep,
    ) -> None:
        self.options = options
        self.names = names
        self.model = model
        self.scheduler = scheduler
        self.sleep = sleep
        self.api_keys = options.values.get("api-key", ())
        text = options.text("max-model-len")
        self.context_length = model.context_length
        if text and text != "auto":
            self.context_length = options.number("max-model-len", model.context_length)
        self.has_stats = not options.has("disable-log-stats")
        self.is_loading = True
        self.is_draining = False
        self.dead: str | None = None
        """Why, once the engine core is gone."""
        self.died = trio.Event()
        self.server_load = 0
        self._tracks_load = options.has("enable-server-load-tracking")
        quiet = options.text("disable-access-log-for-endpoints").split(",")
        self.quiet_paths = set(filter(None, quiet))
        if options.has("disable-uvicorn-access-log"):
            self.quiet_paths.add("*")
        self._behaviour = behaviour

    def fail(self, why: str) -> None:
        """The engine core is gone: what runs ends with an error."""
        if self.dead is None:
            self.dead = why
            log(f"EngineCore failed: {why}", level="ERROR")
            self.died.set()

    def wait_gone(self, exchange: Exchange) -> WaitGone:
        """A hang-up is noticed at once, unless a fault says otherwise."""
        delay_s = self._behaviour.faults.slow_disconnect_s or 0.0

        async def wait() -> None:
            await exchange.hung_up.wait()
            await trio.sleep(delay_s)

        return wait

    @contextlib.contextmanager
    def counted_load(self) -> Iterator[None]:
        self.server_load += self._tracks_load
        try:
            yield
        finally:
            self.server_load -= self._tracks_load

    def log_access(self, exchange: Exchange) -> None:
        write_line(
            f'INFO:     127.0.0.1:0 - "{exchange.method} {exchange.path} HTTP/1.1" '
            f"{exchange.status or 499}"
        )


def log(text: str, *, level: str = "INFO", process: str = "APIServer") -> None:
    """One line as vLLM writes it, to standard output."""
    at = time.strftime("%m-%d %H:%M:%S")
    write_line(f"({process} pid={os.getpid()}) {level} {at} [simulated.py:1] {text}")


def write_line(text: str) -> None:
    # Whoever reads our output may be gone; the engine serves on.
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stdout, flush=True)

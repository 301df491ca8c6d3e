"""What one simulated SGLang knows of itself while it runs, and how it writes its log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping

import attrs
import trio

from capyctl.simulated.answering import WaitGone
from capyctl.simulated.behaviour import Behaviour
from capyctl.simulated.command_line import Options
from capyctl.simulated.generation import Scheduler
from capyctl.simulated.http_server import Exchange
from capyctl.simulated.local_model import LocalModel
from capyctl.simulated.sglang_occupancy import Occupancy

DISCONNECT_S = 2.0
"""A background task aborts a request so long after its client hung up."""
HEALTH_S = 20.0


@attrs.define(eq=False, kw_only=True)
class SglangState:
    """Shared by the routes and the program around them. One task writes at a time."""

    options: Options
    name: str
    """The one it is served under."""
    model: LocalModel
    behaviour: Behaviour
    scheduler: Scheduler
    occupancy: Occupancy
    api_key: str | None = attrs.field(repr=False)
    admin_key: str | None = attrs.field(repr=False)
    context_length: int
    token_count_max: int
    """Of the KV pool."""
    health_generates: bool
    health_within_s: float = HEALTH_S
    status: str = "Starting"
    """``Starting``, ``Up`` or ``UnHealthy``."""
    is_exiting: bool = False

    def wait_gone(self, exchange: Exchange) -> WaitGone:
        slow_s = self.behaviour.faults.slow_disconnect_s
        delay_s = DISCONNECT_S if slow_s is None else slow_s

        async def wait() -> None:
            await exchange.hung_up.wait()
            await trio.sleep(delay_s)

        return wait

    def server_args(self) -> dict[str, object]:
        """As it logs them and shows them at ``/server_info``: the keys in clear."""
        options = self.options
        return {
            "model_path": self.model.path,
            "served_model_name": self.name,
            "host": options.text("host", "127.0.0.1"),
            "port": options.number("port", 30000),
            "api_key": self.api_key,
            "admin_api_key": self.admin_key,
            "enable_memory_saver": options.has("enable-memory-saver"),
            "enable_weights_cpu_backup": options.has("enable-weights-cpu-backup"),
            "enable_metrics": options.has("enable-metrics"),
            "mem_fraction_static": options.text("mem-fraction-static") or None,
            "max_total_tokens": options.text("max-total-tokens") or None,
            "speculative_algorithm": options.text("speculative-algorithm") or None,
            "weight_cache_mode": options.text("weight-cache-mode", "off"),
            "delete_ckpt_after_loading": options.has("delete-ckpt-after-loading"),
        }

    def log_access(self, exchange: Exchange) -> None:
        write_line(
            f'INFO:     127.0.0.1:0 - "{exchange.method} {exchange.path} HTTP/1.1" '
            f"{exchange.status or 499}"
        )


def keys_of(options: Options, env: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Inference and admin key: of the command line, else as the protected entry takes them."""
    inference = options.text("api-key") or env.get("CAPYCTL_ENGINE_API_KEY")
    admin = options.text("admin-api-key") or env.get("CAPYCTL_SGLANG_ADMIN_KEY")
    return inference or None, admin or None


def log(text: str) -> None:
    """One line as SGLang writes it, to standard error, without a level."""
    write_line(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}")


def write_line(text: str) -> None:
    # Whoever reads our output may be gone; the engine serves on.
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)

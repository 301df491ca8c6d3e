"""TensorFold: its command line and what it tells of itself. It never parks."""

from __future__ import annotations

import os.path
import re

import attrs

from capyctl.contracts.engines import (
    Control,
    EngineBroken,
    LaunchKeys,
    NotReady,
    ParkRefused,
    Rendered,
)
from capyctl.domain.devices import EngineSample
from capyctl.domain.launches import LaunchOrder
from capyctl.domain.specs import ModelTask
from capyctl.domain.units import GIB, MIB
from capyctl.engines.arguments import check_rendered_once, names_option
from capyctl.engines.environment import SINGLE_RANK_PINS, build_env, shared_env
from capyctl.engines.gauges import SAMPLE_WITHIN_S, GaugeNames, read_gauges
from capyctl.engines.http import Unreachable
from capyctl.engines.readiness import (
    Caller,
    wait_answering,
    wait_completion,
    wait_listed,
)
from capyctl.engines.surroundings import Surroundings

PARALLEL_DEFAULT = 8

GAUGES = GaugeNames(
    running="tensorfold:requests_running",
    waiting="tensorfold:requests_waiting",
    kv_usage="tensorfold:kv_cache_usage_ratio",
)

TENSORFOLD_ROUTES = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/tokenize",
    }
)


@attrs.frozen(kw_only=True)
class Tensorfold:
    """The TensorFold family on one machine. Its engines are stopped, whatever routes they have."""

    surroundings: Surroundings

    @property
    def name(self) -> str:
        return "tensorfold"

    @property
    def parks(self) -> bool:
        return False

    @property
    def takes_key(self) -> bool:
        return False

    def routes(self, task: ModelTask) -> frozenset[str]:
        return TENSORFOLD_ROUTES if task is ModelTask.GENERATE else frozenset()

    def render(self, order: LaunchOrder, *, port: int, keys: LaunchKeys) -> Rendered:
        """See `contracts.engines.Family.render`. The engine takes no key."""
        engine = order.engine
        if engine.context_length is None:
            raise ValueError("engine_config.context_length: TensorFold must be told")
        theirs = (*engine.profile_args, *engine.extra_args)
        ours = [*engine.executable, "serve", engine.model_path, "--name", engine.served_name]
        ours += ["--host", "127.0.0.1", "--port", str(port), "--no-update-check"]
        ours += ["--backend", "cuda", "--snapshot-dir", "none"]
        ours += ["--context", str(engine.context_length)]
        if not names_option(self.name, theirs, "parallel"):
            ours += ["--parallel", str(engine.concurrency or PARALLEL_DEFAULT)]
        ours += _drafter(theirs, engine.draft_path)
        ours += _typed_options(order)
        argv = (*ours, *theirs)
        check_rendered_once(self.name, argv, ours=len(ours))
        return Rendered(argv=argv, env=self._env(order))

    async def wait_ready(self, control: Control, order: LaunchOrder | None) -> str | None:
        """See `contracts.engines.Family.wait_ready`. None: there is no wake to compare with."""
        caller = Caller(control=control)
        health = await wait_answering(lambda: caller.get("/health"), "/health")
        if (health.json_object() or {}).get("ok") is not True:
            raise NotReady("launch_failed", "/health answered 200 without ok: true")
        await wait_listed(caller)
        await wait_completion(caller)
        return None

    async def park(self, control: Control) -> None:
        """Always refused: TensorFold is stopped instead."""
        raise ParkRefused("TensorFold engines are stopped, never parked")

    async def wake(self, control: Control, *, canary: str | None) -> None:
        """Always refused: nothing of this family was ever parked."""
        raise EngineBroken("wake_failed", "TensorFold engines are started, never woken")

    async def sample(self, control: Control) -> EngineSample | None:
        """See `contracts.engines.Family.sample`. `busy` of `/health` counts as one that runs."""
        caller = Caller(control=control)
        seen = await read_gauges(caller, GAUGES)
        if seen is None:
            return None
        running = seen.running
        if running == 0 and seen.waiting == 0:
            running = await _running_by_health(caller)
        return EngineSample(
            at_s=self.surroundings.monotonic_s(),
            running=running,
            waiting=seen.waiting,
            kv_usage_ratio=seen.kv_usage_ratio,
        )

    def _env(self, order: LaunchOrder) -> dict[str, str]:
        env = shared_env(order, self.surroundings)
        env.update(build_env(order, self.surroundings))
        env.update(order.engine.env)
        env.update(SINGLE_RANK_PINS)
        env["TENSORFOLD_NO_UPDATE_CHECK"] = "1"
        env["HF_HUB_OFFLINE"] = env["TRANSFORMERS_OFFLINE"] = "1"
        env["TORCH_EXTENSIONS_DIR"] = extensions_dir(order, self.surroundings)
        if order.engine.request_bytes is not None:
            whole_bytes = order.engine.request_bytes // MIB * MIB
            env["TENSORFOLD_CUDA_MEMORY_LIMIT_GB"] = f"{whole_bytes / GIB:.10g}"
        return env


def extensions_dir(order: LaunchOrder, surroundings: Surroundings) -> str:
    """Where its kernels are built: a folder for each build of the engine."""
    build = re.sub(r"[^0-9A-Za-z.+_-]", "-", order.engine.build_fingerprint or "unknown")
    return os.path.join(surroundings.engine_dir("tensorfold", build), "torch_extensions")


async def _running_by_health(caller: Caller) -> int:
    """What `/health` counts as running, where it tells; at least one while it is busy."""
    try:
        reply = await caller.get("/health", within_s=SAMPLE_WITHIN_S)
    except Unreachable:
        return 0
    words = reply.json_object() or {}
    running = words.get("requests_running")
    count = running if type(running) is int and running > 0 else 0
    return max(count, 1 if words.get("busy") is True else 0)


def _drafter(theirs: tuple[str, ...], draft_path: str | None) -> list[str]:
    """Drafting is off unless somebody says otherwise.

    Raises:
        ValueError: somebody says it twice.
    """
    drafter = names_option("tensorfold", theirs, "drafter")
    # The canonical name of --no-drafts has lost its `no-`.
    without = names_option("tensorfold", theirs, "drafts")
    if drafter and without:
        raise ValueError(
            "engine_config.extra_args: --drafter and --no-drafts contradict each other"
        )
    if draft_path is None:
        return [] if drafter or without else ["--drafter", "none"]
    if drafter or without:
        raise ValueError("model.draft: --drafter or --no-drafts is given too")
    return ["--drafter", draft_path]


def _typed_options(order: LaunchOrder) -> list[str]:
    typed = order.engine.typed
    options: list[str] = []
    if "kv_cache_dtype" in typed:
        options += ["--kv-dtype", str(typed["kv_cache_dtype"])]
    if "tensorfold.max_tokens" in typed:
        options += ["--max-tokens", str(typed["tensorfold.max_tokens"])]
    if "tensorfold.thinking" in typed:
        options.append("--thinking" if typed["tensorfold.thinking"] else "--no-thinking")
    return options

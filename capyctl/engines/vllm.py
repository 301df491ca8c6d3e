"""vLLM: its command line, and its control surface in development mode."""

from __future__ import annotations

import math
from collections.abc import Mapping

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
from capyctl.domain.specs import ModelTask, Residency
from capyctl.engines import vllm_sleep
from capyctl.engines.arguments import names_option
from capyctl.engines.entry_command import entry_command
from capyctl.engines.environment import SINGLE_RANK_PINS, build_env, shared_env
from capyctl.engines.gauges import GaugeNames, read_gauges
from capyctl.engines.readiness import (
    Caller,
    first_canary,
    wait_answered,
    wait_health,
    wait_listed,
)
from capyctl.engines.surroundings import Surroundings
from capyctl.engines.vllm_drafts import drafts_by_weights, with_draft

ENTRY = "vllm_entry.py"
SEQUENCES_DEFAULT = 32
CARD_SHARE_MAX_PERCENT = 99
UNIFIED_SHARE_STEPS = 10_000

GAUGES = GaugeNames(
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    kv_usage="vllm:kv_cache_usage_perc",
)

_GENERATING = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/tokenize",
    }
)
_SCORING = frozenset({"/v1/rerank", "/v1/score", "/tokenize"})
VLLM_ROUTES: Mapping[ModelTask, frozenset[str]] = {
    ModelTask.GENERATE: _GENERATING,
    ModelTask.EMBED: _SCORING | {"/v1/embeddings"},
    ModelTask.RERANK: _SCORING,
    ModelTask.TRANSCRIBE: _GENERATING | {"/v1/audio/transcriptions"},
}
"""vLLM mounts what the model it loaded can do; it scores with embeddings, too."""


@attrs.frozen(kw_only=True)
class Vllm:
    """The vLLM family on one machine. Parks by vLLM's own sleep mode."""

    surroundings: Surroundings

    @property
    def name(self) -> str:
        return "vllm"

    @property
    def parks(self) -> bool:
        return True

    @property
    def takes_key(self) -> bool:
        return True

    def routes(self, task: ModelTask) -> frozenset[str]:
        return VLLM_ROUTES[task]

    def render(self, order: LaunchOrder, *, port: int, keys: LaunchKeys) -> Rendered:
        """See `contracts.engines.Family.render`."""
        order = with_draft(order)
        engine = order.engine
        ours = [engine.model_path]
        ours += ["--host", "127.0.0.1", "--port", str(port)]
        ours += ["--served-model-name", engine.served_name]
        ours += self._sizes(order)
        ours += _typed_options(order)
        if engine.task in (ModelTask.EMBED, ModelTask.RERANK):
            ours += ["--runner", "pooling"]
        ours += self._parking(order)
        ours += ["--enable-per-request-metrics", *_parsers(order)]
        argv = entry_command(order, self.surroundings, ENTRY, ours=ours, verb=("serve",))
        return Rendered(argv=argv, env=self._env(order, keys))

    async def wait_ready(self, control: Control, order: LaunchOrder | None) -> str | None:
        """See `contracts.engines.Family.wait_ready`. The canary's answer where it can park."""
        caller = Caller(control=control)
        await wait_health(caller)
        await _check_guard(caller)
        await wait_listed(caller)
        return await first_canary(caller)

    async def park(self, control: Control) -> None:
        """See `contracts.engines.Family.park`."""
        if control.level not in {1, 2}:
            raise ParkRefused("it was started without sleep mode")
        await vllm_sleep.park(Caller(control=control), control.level, lambda: self.sample(control))

    async def wake(self, control: Control, *, canary: str | None) -> None:
        """See `contracts.engines.Family.wake`."""
        if control.level not in {1, 2}:
            raise EngineBroken("wake_failed", "it was started without sleep mode")
        await vllm_sleep.wake(Caller(control=control), control.level, canary=canary)

    async def sample(self, control: Control) -> EngineSample | None:
        """See `contracts.engines.Family.sample`. Gauges are summed over data-parallel engines."""
        seen = await read_gauges(Caller(control=control), GAUGES)
        if seen is None:
            return None
        return EngineSample(
            at_s=self.surroundings.monotonic_s(),
            running=seen.running,
            waiting=seen.waiting,
            kv_usage_ratio=seen.kv_usage_ratio,
        )

    def _sizes(self, order: LaunchOrder) -> list[str]:
        engine = order.engine
        options: list[str] = []
        if engine.context_length is not None:
            options += ["--max-model-len", str(engine.context_length)]
        if not names_option(self.name, engine.profile_args, "max-num-seqs"):
            options += ["--max-num-seqs", str(engine.concurrency or SEQUENCES_DEFAULT)]
        if engine.kv_cache_bytes is not None:
            options += ["--kv-cache-memory-bytes", str(engine.kv_cache_bytes)]
        share = self._memory_share(order)
        if share is not None:
            options += ["--gpu-memory-utilization", share]
        return options

    def _memory_share(self, order: LaunchOrder) -> str | None:
        """The memory request as a share of the card, or of unified memory.

        Raises:
            ValueError: the request is larger than the card.
        """
        gpu = self.surroundings.gpu_of(order)
        request_bytes = order.engine.request_bytes
        if gpu is None or request_bytes is None:
            return None
        if request_bytes > gpu.total_bytes:
            raise ValueError(
                f"engine_config.memory.request: {request_bytes} bytes do not fit {gpu.name} "
                f"with {gpu.total_bytes} bytes"
            )
        if self.surroundings.shape.unified:
            steps = math.ceil(request_bytes * UNIFIED_SHARE_STEPS / gpu.total_bytes)
            return f"{min(steps / UNIFIED_SHARE_STEPS, 0.99):.4f}"
        percent = -(-request_bytes * 100 // gpu.total_bytes)
        return f"{min(percent, CARD_SHARE_MAX_PERCENT) / 100:.2f}"

    def _parking(self, order: LaunchOrder) -> list[str]:
        strategy = order.engine.typed.get("vllm.safetensors_load_strategy")
        if strategy is None and order.engine.parks:
            strategy = "lazy" if self.surroundings.shape.unified else "eager"
        options = ["--enable-sleep-mode"] if order.engine.parks else []
        if order.engine.parks and order.residency is Residency.DEEP and drafts_by_weights(order):
            # A wake reads the model's own weights again, and no others.
            options += ["--sleep-preserve-parameter-names", "draft.*"]
        if strategy is not None:
            options += ["--safetensors-load-strategy", str(strategy)]
        return options

    def _env(self, order: LaunchOrder, keys: LaunchKeys) -> dict[str, str]:
        env = shared_env(order, self.surroundings)
        _refuse_expandable_segments(order)
        env.update(build_env(order, self.surroundings))
        env.update(order.engine.env)
        env.update(SINGLE_RANK_PINS)
        env["CAPYCTL_ENGINE_API_KEY"] = keys.inference
        env["CAPYCTL_VLLM_ADMIN_KEY"] = keys.admin
        env["VLLM_API_KEY"] = keys.inference
        if order.engine.parks:
            env["VLLM_SERVER_DEV_MODE"] = "1"
        return env


async def _check_guard(caller: Caller) -> None:
    """An engine whose other routes answer without a key could be put to sleep by anyone here.

    Raises:
        NotReady: so it is.
    """
    nobody = attrs.evolve(caller.control, admin_key=None)
    reply = await wait_answered(lambda: Caller(control=nobody).get("/load", admin=True))
    if reply.status not in (401, 403):
        raise NotReady(
            "launch_failed", f"a route that needs the admin key answered {reply.status} without it"
        )


_VALUES = {
    "dtype": "--dtype",
    "quantization": "--quantization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "vllm.block_size_tokens": "--block-size",
    "vllm.max_num_batched_tokens": "--max-num-batched-tokens",
}

_SWITCHES = {
    ("cuda_graphs", False): "--enforce-eager",
    ("language_model_only", True): "--language-model-only",
    ("trust_remote_code", True): "--trust-remote-code",
}


def _typed_options(order: LaunchOrder) -> list[str]:
    typed = order.engine.typed
    options: list[str] = []
    for field, option in _VALUES.items():
        if field in typed:
            options += [option, str(typed[field])]
    for (field, value), option in _SWITCHES.items():
        if typed.get(field) is value:
            options.append(option)
    return options


def _parsers(order: LaunchOrder) -> list[str]:
    """Parser options that are named; ``auto`` is resolved before an order is written."""
    tool = order.engine.typed.get("vllm.tool_call_parser")
    reasoning = order.engine.typed.get("vllm.reasoning_parser")
    options: list[str] = []
    if tool not in {None, "auto", "none"}:
        options += ["--enable-auto-tool-choice", "--tool-call-parser", str(tool)]
    if reasoning not in {None, "auto", "none"}:
        options += ["--reasoning-parser", str(reasoning)]
    return options


def _refuse_expandable_segments(order: LaunchOrder) -> None:
    """Sleep mode keeps weights in a pool of its own, which cannot be made of growing segments."""
    if not order.engine.parks:
        return
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if "expandable_segments:true" in order.engine.env.get(name, "").lower():
            raise ValueError(
                f"engine_config.env.{name}: expandable_segments does not go with parking; "
                "leave it out, or deploy with residency: restart_only"
            )

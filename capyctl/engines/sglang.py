"""SGLang: its command line, and its control surface."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from capyctl.contracts.engines import (
    Control,
    EngineBroken,
    LaunchKeys,
    ParkRefused,
    Rendered,
)
from capyctl.domain.devices import EngineSample
from capyctl.domain.launches import LaunchOrder
from capyctl.domain.specs import ModelTask, Residency
from capyctl.engines import sglang_park
from capyctl.engines.entry_command import entry_command
from capyctl.engines.environment import SINGLE_RANK_PINS, build_env, shared_env
from capyctl.engines.gauges import SAMPLE_WITHIN_S, GaugeNames, read_gauges
from capyctl.engines.http import Unreachable
from capyctl.engines.readiness import Caller, first_canary, wait_health, wait_listed
from capyctl.engines.surroundings import Surroundings

ENTRY = "sglang_entry.py"
SHARE_STEPS = 10_000
SHARE_MAX_STEPS = 9_999

GAUGES = GaugeNames(
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
    kv_usage="sglang:token_usage",
)

_GENERATING = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/score",
        "/tokenize",
    }
)
SGLANG_ROUTES: Mapping[ModelTask, frozenset[str]] = {
    ModelTask.GENERATE: _GENERATING,
    ModelTask.EMBED: frozenset({"/v1/embeddings", "/tokenize"}),
    ModelTask.RERANK: frozenset({"/v1/rerank", "/tokenize"}),
    ModelTask.TRANSCRIBE: _GENERATING | {"/v1/audio/transcriptions"},
}
"""It scores by the probabilities of tokens, so with models that generate."""


@attrs.frozen(kw_only=True)
class Sglang:
    """The SGLang family on one machine. Parks by releasing its memory occupation."""

    surroundings: Surroundings
    _released: sglang_park.Released = attrs.field(
        factory=sglang_park.Released, init=False, repr=False, eq=False
    )
    _limits: dict[tuple[int, str | None], int | None] = attrs.field(
        factory=dict, init=False, repr=False, eq=False
    )
    """By port and key: the running limit that the engine told, once."""

    @property
    def name(self) -> str:
        return "sglang"

    @property
    def parks(self) -> bool:
        return True

    @property
    def takes_key(self) -> bool:
        return True

    def routes(self, task: ModelTask) -> frozenset[str]:
        return SGLANG_ROUTES[task]

    def render(self, order: LaunchOrder, *, port: int, keys: LaunchKeys) -> Rendered:
        """See `contracts.engines.Family.render`. Keys go to the entry, which sets them."""
        engine = order.engine
        ours = ["--model-path", engine.model_path, "--served-model-name", engine.served_name]
        ours += ["--host", "127.0.0.1", "--port", str(port)]
        ours += ["--enable-metrics", "--enable-cache-report"]
        ours += ["--log-level", "info", "--log-level-http", "info"]
        ours += ["--tokenizer-worker-num", str(engine.typed.get("sglang.tokenizer_workers", 1))]
        ours += self._sizes(order)
        ours += _typed_options(order)
        if engine.task in (ModelTask.EMBED, ModelTask.RERANK):
            ours.append("--is-embedding")
        if engine.draft_path is not None:
            ours += ["--speculative-draft-model-path", engine.draft_path]
        ours += _parking(order)
        ours += _parsers(order)
        argv = entry_command(order, self.surroundings, ENTRY, ours=ours, verb=("serve",))
        return Rendered(argv=argv, env=self._env(order, keys))

    async def wait_ready(self, control: Control, order: LaunchOrder | None) -> str | None:
        """See `contracts.engines.Family.wait_ready`. The canary's answer where it can park."""
        caller = Caller(control=control)
        await wait_health(caller)
        await wait_listed(caller)
        return await first_canary(caller)

    async def park(self, control: Control) -> None:
        """See `contracts.engines.Family.park`."""
        if control.level not in {1, 2}:
            raise ParkRefused("it was started without the memory saver")
        await sglang_park.park(
            Caller(control=control), control.level, lambda: self.sample(control), self._released
        )

    async def wake(self, control: Control, *, canary: str | None) -> None:
        """See `contracts.engines.Family.wake`."""
        if control.level not in {1, 2}:
            raise EngineBroken("wake_failed", "it was started without the memory saver")
        await sglang_park.wake(
            Caller(control=control), control.level, canary=canary, released=self._released
        )

    async def sample(self, control: Control) -> EngineSample | None:
        """See `contracts.engines.Family.sample`. Gauges are summed over data-parallel ranks."""
        caller = Caller(control=control)
        seen = await read_gauges(caller, GAUGES)
        if seen is None:
            return None
        return EngineSample(
            at_s=self.surroundings.monotonic_s(),
            running=seen.running,
            waiting=seen.waiting,
            kv_usage_ratio=seen.kv_usage_ratio,
            running_limit_count=await self._running_limit(caller),
        )

    async def _running_limit(self, caller: Caller) -> int | None:
        """The most requests that it runs at once; asked once per launch."""
        identity = (caller.control.endpoint.port, caller.control.admin_key)
        if identity in self._limits:
            return self._limits[identity]
        if len(self._limits) >= sglang_park.KNOWN_MAX:
            self._limits.clear()
        try:
            reply = await caller.get("/v1/loads?include=core", within_s=SAMPLE_WITHIN_S)
        except Unreachable:
            return None
        self._limits[identity] = read_running_limit((reply.json_object() or {}).get("loads"))
        return self._limits[identity]

    def _sizes(self, order: LaunchOrder) -> list[str]:
        engine = order.engine
        options: list[str] = []
        if engine.context_length is not None:
            options += ["--context-length", str(engine.context_length)]
        pool_bytes = engine.typed.get("sglang.static_pool_bytes")
        if pool_bytes is not None:
            options += ["--mem-fraction-static", self._static_share(order, int(pool_bytes))]
        if "sglang.max_total_tokens" in engine.typed:
            options += ["--max-total-tokens", str(engine.typed["sglang.max_total_tokens"])]
        if "sglang.max_mamba_cache_size" in engine.typed:
            slots = engine.typed["sglang.max_mamba_cache_size"]
            options += ["--max-mamba-cache-size", str(slots)]
        if engine.concurrency is not None:
            options += ["--max-running-requests", str(engine.concurrency)]
        if "sglang.chunked_prefill_size" in engine.typed:
            size = engine.typed["sglang.chunked_prefill_size"]
            options += ["--chunked-prefill-size", str(size)]
        return options

    def _static_share(self, order: LaunchOrder, pool_bytes: int) -> str:
        """The static pool as a share: of the card, or of the memory available at this moment.

        Raises:
            ValueError: nobody can tell how much memory there is.
        """
        gpu = self.surroundings.gpu_of(order)
        whole_bytes = None if gpu is None else gpu.total_bytes
        if gpu is None or self.surroundings.shape.unified:
            whole_bytes = self.surroundings.available_bytes()
        if not whole_bytes:
            raise ValueError("engine_config.memory: the available memory of the machine is unknown")
        steps = pool_bytes * SHARE_STEPS // whole_bytes
        return f"{max(1, min(steps, SHARE_MAX_STEPS)) / SHARE_STEPS:.4f}"

    def _env(self, order: LaunchOrder, keys: LaunchKeys) -> dict[str, str]:
        env = shared_env(order, self.surroundings)
        env.update(build_env(order, self.surroundings))
        env.update(order.engine.env)
        env.update(SINGLE_RANK_PINS)
        folder = self.surroundings.rendezvous_dir
        env["CAPYCTL_RENDEZVOUS_DIR"] = folder
        env["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] = f"file://{folder}/{order.launch}"
        env["CAPYCTL_ENGINE_API_KEY"] = keys.inference
        env["CAPYCTL_SGLANG_ADMIN_KEY"] = keys.admin
        if order.engine.parks:
            # Whoever asks for its health while it is parked must not make it generate a token.
            env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] = "0"
            # With graphs registered, NCCL hangs on memory that the saver has taken away.
            env["NCCL_GRAPH_REGISTER"] = "0"
        return env


_VALUES = {
    "dtype": "--dtype",
    "quantization": "--quantization",
    "kv_cache_dtype": "--kv-cache-dtype",
}

_SWITCHES = {
    ("cuda_graphs", False): "--disable-cuda-graph",
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


def _parking(order: LaunchOrder) -> list[str]:
    if not order.engine.parks:
        return []
    keeps_copy = order.residency is Residency.HOST_BACKED
    return ["--enable-memory-saver", *(["--enable-weights-cpu-backup"] if keeps_copy else [])]


def _parsers(order: LaunchOrder) -> list[str]:
    """Parser options that are named; ``auto`` is resolved before an order is written."""
    options: list[str] = []
    for field in ("tool_call_parser", "reasoning_parser"):
        name = order.engine.typed.get(f"sglang.{field}")
        if name not in {None, "auto", "none"}:
            options += [f"--{field.replace('_', '-')}", str(name)]
    return options


def read_running_limit(loads: object) -> int | None:
    """Sum of the ranks' limits; None for any other shape."""
    if not isinstance(loads, list) or not loads:
        return None
    limit = 0
    for row in loads:
        found = row.get("max_running_requests") if isinstance(row, dict) else None
        if type(found) is not int or found < 1:
            return None
        limit += found
    return limit

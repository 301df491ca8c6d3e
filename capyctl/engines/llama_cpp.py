"""llama.cpp's llama-server: its command line and what it tells of itself. It never parks."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from typing import Any

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
from capyctl.engines.arguments import check_rendered_once, names_option
from capyctl.engines.environment import shared_env
from capyctl.engines.gauges import SAMPLE_WITHIN_S, GaugeNames, read_gauges
from capyctl.engines.http import Unreachable
from capyctl.engines.readiness import (
    Caller,
    wait_answering,
    wait_completion,
    wait_health,
    wait_listed,
)
from capyctl.engines.surroundings import Surroundings

SLOTS_EVERY_S = 5.0
"""Each look at the slots holds up a cancelled request by up to a second."""
SLOTS_KNOWN_MAX = 256

SLOTS_DEFAULT = 4
CONTEXT_DEFAULT = 4096
CONTEXT_STEP = 256

GAUGES = GaugeNames(running="llamacpp:requests_processing", waiting="llamacpp:requests_deferred")

CACHE_TYPES = frozenset(["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"])

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
LLAMA_CPP_ROUTES: Mapping[ModelTask, frozenset[str]] = {
    ModelTask.GENERATE: _GENERATING,
    ModelTask.EMBED: frozenset({"/v1/embeddings", "/tokenize"}),
    ModelTask.RERANK: frozenset({"/v1/rerank", "/tokenize"}),
    ModelTask.TRANSCRIBE: _GENERATING | {"/v1/audio/transcriptions"},
}


@attrs.frozen(kw_only=True)
class LlamaCpp:
    """The llama.cpp family on one machine."""

    surroundings: Surroundings
    _slots: dict[tuple[str, int], tuple[float, float | None]] = attrs.field(
        factory=dict, init=False, repr=False, eq=False
    )
    """By engine address: when its slots were last read, and the share of cache then in use."""

    @property
    def name(self) -> str:
        return "llamacpp"

    @property
    def parks(self) -> bool:
        return False

    @property
    def takes_key(self) -> bool:
        return False

    def routes(self, task: ModelTask) -> frozenset[str]:
        return LLAMA_CPP_ROUTES[task]

    def render(self, order: LaunchOrder, *, port: int, keys: LaunchKeys) -> Rendered:
        """See `contracts.engines.Family.render`. The engine takes no key."""
        engine = order.engine
        _check_served_name(engine.served_name)
        cache_type = str(engine.typed.get("kv_cache_dtype", "f16"))
        if cache_type not in CACHE_TYPES:
            raise ValueError(
                f"engine_config.kv_cache_dtype: llama.cpp takes {', '.join(sorted(CACHE_TYPES))}"
            )
        slots = slots_of(order)
        ours = [*engine.executable, "--host", "127.0.0.1", "--port", str(port)]
        ours += ["--model", model_file(order), "--alias", engine.served_name]
        ours += ["--ctx-size", str(slot_context(order) * slots), "--parallel", str(slots)]
        ours += ["--no-kv-unified"]
        ours += ["--gpu-layers", str(engine.typed.get("llamacpp.n_gpu_layers", "all"))]
        ours += ["--cache-type-k", cache_type, "--cache-type-v", cache_type]
        ours += ["--fit", "off", "--cache-ram", "0", "--no-context-shift", "--metrics", "--slots"]
        ours += ["--offline", "--no-webui", "--cors-origins", "localhost", "--no-cors-credentials"]
        ours += _task_options(order)
        if "llamacpp.mmproj_file" in engine.typed:
            ours += ["--mmproj", _beside(order, "llamacpp.mmproj_file")]
        argv = (*ours, *engine.profile_args, *engine.extra_args)
        check_rendered_once(self.name, argv, ours=len(ours))
        return Rendered(argv=argv, env=self._env(order))

    async def wait_ready(self, control: Control, order: LaunchOrder | None) -> str | None:
        """See `contracts.engines.Family.wait_ready`. None: there is no wake to compare with."""
        caller = Caller(control=control)
        await wait_health(caller)
        model = await wait_listed(caller)
        props = await wait_answering(lambda: caller.get("/props"), "/props")
        if order is not None:
            _check_settings(order, model, props.json_object() or {})
        await wait_completion(caller)
        return None

    async def park(self, control: Control) -> None:
        """Always refused: llama.cpp is stopped instead."""
        raise ParkRefused("llama.cpp engines are stopped, never parked")

    async def wake(self, control: Control, *, canary: str | None) -> None:
        """Always refused: nothing of this family was ever parked."""
        raise EngineBroken("wake_failed", "llama.cpp engines are started, never woken")

    async def sample(self, control: Control) -> EngineSample | None:
        """See `contracts.engines.Family.sample`. The cache's use is up to 5 s old."""
        caller = Caller(control=control)
        seen = await read_gauges(caller, GAUGES)
        if seen is None:
            return None
        return EngineSample(
            at_s=self.surroundings.monotonic_s(),
            running=seen.running,
            waiting=seen.waiting,
            kv_usage_ratio=await self._cache_usage(caller),
        )

    async def _cache_usage(self, caller: Caller) -> float | None:
        address = (caller.control.endpoint.host, caller.control.endpoint.port)
        now_s = self.surroundings.monotonic_s()
        known = self._slots.get(address)
        if known is not None and now_s - known[0] < SLOTS_EVERY_S:
            return known[1]
        if len(self._slots) >= SLOTS_KNOWN_MAX:
            self._slots.clear()
        # Noted before the read, so that a slow answer does not bring the next look nearer.
        self._slots[address] = (now_s, None)
        try:
            reply = await caller.get("/slots", within_s=SAMPLE_WITHIN_S)
            usage = slots_usage(reply.json()) if reply.status == 200 else None
        except (Unreachable, ValueError):
            usage = None
        self._slots[address] = (now_s, usage)
        return usage

    def _env(self, order: LaunchOrder) -> dict[str, str]:
        env = shared_env(order, self.surroundings)
        env.update(order.engine.env)
        env["XDG_CONFIG_HOME"] = self.surroundings.engine_dir(self.name, "config")
        env["LLAMA_CACHE"] = self.surroundings.engine_dir(self.name, "cache")
        return env


def model_file(order: LaunchOrder) -> str:
    """The GGUF file to load: the model path itself, or the named file under it."""
    path = order.engine.model_path
    if path.endswith(".gguf") or "llamacpp.gguf_file" not in order.engine.typed:
        return path
    return os.path.join(path, str(order.engine.typed["llamacpp.gguf_file"]))


def _beside(order: LaunchOrder, field: str) -> str:
    """The file that a typed field names, relative to the model's folder unless absolute."""
    path = order.engine.model_path
    folder = os.path.dirname(path) if path.endswith(".gguf") else path
    return os.path.join(folder, str(order.engine.typed[field]))


def slots_of(order: LaunchOrder) -> int:
    """Requests that the engine runs at once."""
    return order.engine.concurrency or SLOTS_DEFAULT


def slot_context(order: LaunchOrder) -> int:
    """Tokens of one slot: the context rounded up to the step that llama.cpp allocates in."""
    wanted = order.engine.context_length or CONTEXT_DEFAULT
    return -(-wanted // CONTEXT_STEP) * CONTEXT_STEP


def _task_options(order: LaunchOrder) -> list[str]:
    """An input of an embedding or reranking model must fit into one batch as a whole."""
    task = order.engine.task
    if task not in (ModelTask.EMBED, ModelTask.RERANK):
        return []
    options = ["--embedding"] if task is ModelTask.EMBED else ["--rerank"]
    if "llamacpp.pooling" in order.engine.typed:
        options += ["--pooling", str(order.engine.typed["llamacpp.pooling"])]
    theirs = (*order.engine.profile_args, *order.engine.extra_args)
    for name in ("batch-size", "ubatch-size"):
        if not names_option("llamacpp", theirs, name):
            options += [f"--{name}", str(slot_context(order))]
    return options


def slots_usage(slots: Any) -> float | None:
    """Tokens held by processing slots over all slots' room; None for any other shape."""
    if not isinstance(slots, list):
        return None
    room, held = 0, 0
    for slot in slots:
        if not isinstance(slot, dict) or not isinstance(slot.get("n_ctx"), int):
            return None
        room += slot["n_ctx"]
        if slot.get("is_processing") is True:
            tokens = slot.get("n_prompt_tokens", 0)
            held += tokens if isinstance(tokens, int) else 0
    return min(1.0, held / room) if room > 0 else None


def _check_served_name(name: str) -> None:
    """llama-server splits aliases at commas and drops spaces around them."""
    if "," in name or name != "".join(name.split()):
        raise ValueError(f"routes: llama.cpp cannot serve {name!r}: no commas or spaces")


def _check_settings(order: LaunchOrder, model: Mapping[str, Any], props: Mapping[str, Any]) -> None:
    """Compare what runs with what was ordered.

    Raises:
        NotReady: ``effective_args_mismatch`` with both figures.
    """
    meta = model.get("meta")
    facts = meta if isinstance(meta, dict) else {}
    trained = facts.get("n_ctx_train")
    context = slot_context(order)
    if isinstance(trained, int) and trained > 0:
        context = min(context, trained)
    for what, found, wanted in (
        ("total_slots", props.get("total_slots"), slots_of(order)),
        ("endpoint_metrics", props.get("endpoint_metrics"), True),
        ("endpoint_slots", props.get("endpoint_slots"), True),
        ("n_ctx", facts.get("n_ctx"), context),
    ):
        if found != wanted:
            raise NotReady(
                "effective_args_mismatch", f"{what} is {found!r}, ordered was {wanted!r}"
            )

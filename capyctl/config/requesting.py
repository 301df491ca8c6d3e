"""From a deployment document, a profile and a model's files to what memory is derived from."""

from __future__ import annotations

from capyctl.config.deployment import DeploymentDocument
from capyctl.config.drafts import speculation_of, with_next
from capyctl.config.engine_config import EngineConfig
from capyctl.config.parsers import spelled
from capyctl.domain.checkpoints import CheckpointFacts
from capyctl.domain.devices import Profile
from capyctl.domain.ids import GpuId
from capyctl.domain.specs import DeploymentSpec
from capyctl.ledger.sizing_request import SizingRequest

_UNCOUNTABLE_OPTIONS = frozenset(
    {
        "--override-tensor",
        "--cpu-moe",
        "--n-cpu-moe",
        "--n-cpu-ffn",
        "--no-kv-offload",
        "--mlock",
        "--model-draft",
        "--spec-draft-model",
    }
)
_STATE_POOL_OPTIONS = frozenset({"--max-mamba-cache-size", "--mamba-full-memory-ratio"})


def sizing_request(
    spec: DeploymentSpec,
    document: DeploymentDocument,
    profile: Profile,
    facts: CheckpointFacts | None,
) -> SizingRequest:
    """What the document states, and what the files are known to hold; W counts a draft."""
    settings, memory = document.engine_config, document.engine_config.memory
    arguments = (*profile.args, *settings.extra_args)
    vllm, sglang = settings.vllm, settings.sglang
    speculation = speculation_of(spec.family, arguments)
    draft = facts.draft if facts is not None else None
    return SizingRequest(
        family=spec.family,
        residency=spec.residency,
        profile_parks=profile.deep_park,
        weights_bytes=_weights(facts),
        draft_bytes=draft.weights_bytes if draft is not None else 0,
        draft_attention=draft.attention if draft is not None else None,
        draft_refused=draft.attention_refused if draft is not None else None,
        attention=facts.attention if facts is not None else None,
        hybrid=facts.hybrid if facts is not None else None,
        attention_refused=facts.attention_refused if facts is not None else None,
        model_type=facts.model_type if facts is not None else None,
        kv_cache_bytes=memory.kv_cache,
        request_bytes=memory.request,
        startup_bytes=memory.startup,
        context_length=settings.context_length,
        concurrency=settings.max_concurrent_requests,
        dtype=settings.dtype,
        kv_cache_dtype=settings.kv_cache_dtype,
        block_tokens=(vllm.block_size_tokens if vllm is not None else None) or 16,
        pool_tokens=sglang.max_total_tokens if sglang is not None else None,
        loader=vllm.safetensors_load_strategy if vllm is not None else None,
        captures_graphs=settings.cuda_graphs is not False,
        speculative=speculation is not None,
        drafts_by_weights=speculation is not None and speculation.has_weights,
        draft_tokens=speculation.tokens if speculation is not None else None,
        state_pool_stated=any(spelled(token) in _STATE_POOL_OPTIONS for token in arguments),
        pads_values=not _flash_attention(arguments),
        uncountable=_uncountable(settings, arguments),
        resources=document.resources.declared() if document.resources is not None else None,
        gpu=_gpu(document),
        request_deadline_s=spec.request_deadline_s,
        initialize_s=spec.initialize_s,
        wake_s=spec.wake_s,
    )


def _weights(facts: CheckpointFacts | None) -> int | None:
    if facts is None:
        return None
    return facts.weights_bytes + (facts.draft.weights_bytes if facts.draft is not None else 0)


def _gpu(document: DeploymentDocument) -> GpuId | None:
    named = {device.id for device in document.devices if device.id is not None}
    if document.resources is not None:
        named |= document.resources.device_ids()
    return GpuId(named.pop()) if named else None


def _flash_attention(arguments: tuple[str, ...]) -> bool:
    pairs = with_next(arguments)
    return any(spelled(name) == "--flash-attn" and value == "on" for name, value in pairs)


def _uncountable(settings: EngineConfig, arguments: tuple[str, ...]) -> str | None:
    """A llama.cpp setting that moves weights or cache where they are not counted."""
    if settings.llamacpp is not None:
        if settings.llamacpp.n_gpu_layers != "all":
            return "only some layers are on the GPU"
        if settings.llamacpp.mmproj_file is not None:
            return "a projector's memory is not counted"
    for token, value in with_next(arguments):
        name = spelled(token)
        drafts = name == "--spec-type" and value.startswith("draft")
        locks = name == "--load-mode" and value == "mlock"
        if name in _UNCOUNTABLE_OPTIONS or drafts or locks:
            return f"{name} is given"
    return None

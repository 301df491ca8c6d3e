"""From a complete specification to what it comes to on one machine."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping

import attrs

from capyctl.config.check import check
from capyctl.config.deployment import DeploymentDocument
from capyctl.config.drafts import speculation_of
from capyctl.config.engine_config import EngineConfig
from capyctl.config.parking import check_parking
from capyctl.config.parsers import choose_parsers
from capyctl.config.problems import InvalidDocument, unsupported
from capyctl.config.requesting import sizing_request
from capyctl.domain.checkpoints import CheckpointFacts
from capyctl.domain.devices import MachineShape, Profile
from capyctl.domain.errors import Refused
from capyctl.domain.specs import (
    Candidate,
    ChosenParser,
    DeploymentSpec,
    EngineSettings,
    Residency,
    ResolvedSpec,
    StartupSource,
)
from capyctl.domain.units import GIB
from capyctl.ledger.sizing import size
from capyctl.ledger.sizing_request import Place, Sized, SizingRequest, Unresolvable

LOCAL_UNIFIED_CACHE_BYTES = 16 * GIB
_OTHER_CODES = frozenset({"invalid_config", "missing_system_allocation"})
_LATE_FIELDS = frozenset({"context_length", "max_concurrent_requests", "task"})
"""Fields that `EngineSettings` has attributes for."""


def resolve(
    spec: DeploymentSpec,
    *,
    profile: Profile,
    machine: MachineShape,
    facts: CheckpointFacts | None,
    env: Mapping[str, str] | None = None,
    kv_default_bytes: int | None = None,
) -> ResolvedSpec:
    """Charges, devices, windows and engine settings of ``spec`` on ``machine``. Pure.

    ``facts`` is None until the model's files were measured: the figures are provisional then.
    ``env`` is the checked environment of profile and document; without it the two are merged
    as they are, names in capitals. ``kv_default_bytes`` is the host's `local_engine.kv_cache`:
    the cache of a document that states no memory and runs on a profile of that block.

    Raises:
        Refused: ``checkpoint_unusable``, ``unsupported_capability`` or ``invalid_config``, with
            figures; the message has the exact reason (``host_backed_unavailable`` …).
    """
    document = _document(spec)
    settings = document.engine_config
    exclusive = _exclusive(document)
    if exclusive and not machine.gpus:
        raise unsupported("devices[0].sharing", "exclusive: this machine has no GPU")
    if facts is not None:
        _check_files(spec, settings, facts)
    request = sizing_request(spec, document, profile, facts)
    if profile.source == "document":
        request = attrs.evolve(request, kv_default_bytes=_local_cache(kv_default_bytes, machine))
    found = size(request, machine)
    if isinstance(found, Unresolvable):
        raise _refusal(found)
    speculation = speculation_of(spec.family, (*profile.args, *settings.extra_args))
    check_parking(found.residency, settings, profile, facts, speculation)
    parsers = choose_parsers(spec.family, settings, facts=facts, profile_args=profile.args)
    typed = _typed(spec, settings, found)
    for field, parser in parsers.items():
        typed.pop(f"{spec.family}.{field}", None)
        if parser.name is not None:
            typed[f"{spec.family}.{field}"] = parser.name
    return ResolvedSpec(
        residency=found.residency,
        engine=_engine(spec, settings, profile, facts, found, typed, env),
        candidates=tuple(
            _candidate(machine, place, request, exclusive=exclusive) for place in found.places
        ),
        windows=found.windows,
        weights_bytes=facts.weights_bytes if facts is not None else None,
        provisional=found.provisional,
        parsers=tuple(
            ChosenParser(field=field, name=parser.name, source=parser.source)
            for field, parser in parsers.items()
        ),
        notes=found.notes,
        running_limit=found.running_limit,
    )


def _document(spec: DeploymentSpec) -> DeploymentDocument:
    try:
        return check(DeploymentDocument, json.loads(spec.document), what="deployment")
    except InvalidDocument as refused:  # stored by a release that took more
        raise refused.refusal() from None


def _local_cache(stated_bytes: int | None, machine: MachineShape) -> int | None:
    """16 GiB on unified memory unless stated; derived on cards."""
    if stated_bytes is None and machine.unified:
        return LOCAL_UNIFIED_CACHE_BYTES
    return stated_bytes


def _refusal(found: Unresolvable) -> Refused:
    if found.token == "checkpoint_unusable":
        return Refused("checkpoint_unusable", f"`{found.path}`: {found.detail}")
    if found.token in _OTHER_CODES:
        token = "" if found.token == "invalid_config" else f"{found.token}: "
        return unsupported(found.path, token + found.detail)
    return Refused("unsupported_capability", f"{found.token} at `{found.path}`: {found.detail}")


def _check_files(spec: DeploymentSpec, settings: EngineConfig, facts: CheckpointFacts) -> None:
    """There are weights, and llama.cpp knows which file to load."""
    if facts.weights_bytes == 0:
        why = facts.attention_refused or "no weight files were found"
        raise Refused("checkpoint_unusable", f"`model`: {why}")
    named = settings.llamacpp is not None and settings.llamacpp.gguf_file is not None
    if spec.family == "llamacpp" and facts.weights_file is None and not named:
        why = facts.attention_refused or "no .gguf file was found; llama.cpp loads no other format"
        raise Refused("checkpoint_unusable", f"`engine_config.llamacpp.gguf_file`: {why}")


# Engine settings


def _engine(
    spec: DeploymentSpec,
    settings: EngineConfig,
    profile: Profile,
    facts: CheckpointFacts | None,
    found: Sized,
    typed: dict[str, str | int | bool],
    env: Mapping[str, str] | None,
) -> EngineSettings:
    return EngineSettings(
        profile=profile.name,
        profile_revision=profile.revision,
        family=profile.family,
        executable=profile.executable,
        model_path=_model_path(spec, settings, facts),
        served_name=spec.routes[0],
        task=spec.task,
        context_length=found.context_length,
        concurrency=found.concurrency,
        kv_cache_bytes=found.kv_cache_bytes,
        request_bytes=found.request_bytes,
        typed=typed,
        profile_args=profile.args,
        extra_args=tuple(settings.extra_args),
        env=_merged(profile, settings) if env is None else env,
        draft_path=spec.draft_path,
        kept_bytes=found.kept_bytes,
        parks=found.residency is not Residency.RESTART_ONLY,
        direct=profile.source == "simulated",
        build_fingerprint=profile.build_fingerprint,
        cuda_home=profile.cuda_home,
        approved_paths=profile.approved_paths,
        installation_drift=profile.installation_drift,
    )


def _merged(profile: Profile, settings: EngineConfig) -> dict[str, str]:
    """The deployment's variables win."""
    pairs = (*profile.env.items(), *settings.env.items())
    return {name.upper(): value for name, value in pairs}


def _model_path(spec: DeploymentSpec, settings: EngineConfig, facts: CheckpointFacts | None) -> str:
    """The directory; for llama.cpp the file to load, once it is known."""
    if spec.family != "llamacpp" or spec.model_path.endswith(".gguf"):
        return spec.model_path
    named = settings.llamacpp.gguf_file if settings.llamacpp is not None else None
    measured = facts.weights_file if facts is not None else None
    file = named or measured
    return spec.model_path if file is None else posixpath.join(spec.model_path, file)


def _typed(
    spec: DeploymentSpec, settings: EngineConfig, found: Sized
) -> dict[str, str | int | bool]:
    """Typed fields by their name in `engine_config`, with the derived ones of the same names."""
    typed: dict[str, str | int | bool] = {}
    for name in settings.stated() - _LATE_FIELDS:
        if name.startswith("memory."):
            continue
        value = _value(settings, name)
        if value is not None:
            typed[name] = value
    if spec.family == "llamacpp":
        typed.setdefault("llamacpp.n_gpu_layers", "all")
        typed.setdefault("kv_cache_dtype", "f16")
        projector = typed.get("llamacpp.mmproj_file")
        if projector is not None:
            folder = spec.model_path
            typed["llamacpp.mmproj_file"] = posixpath.join(folder, str(projector))
    if found.loader is not None:
        typed["vllm.safetensors_load_strategy"] = found.loader
    if found.pool_tokens is not None:
        typed["sglang.max_total_tokens"] = found.pool_tokens
    if found.state_slots is not None:
        typed["sglang.max_mamba_cache_size"] = found.state_slots
    if found.static_pool_bytes is not None:
        typed["sglang.static_pool_bytes"] = found.static_pool_bytes
    return typed


def _value(settings: EngineConfig, name: str) -> str | int | bool | None:
    block, _, field = name.partition(".")
    value = getattr(settings, block)
    found: str | int | bool | None = getattr(value, field) if field else value
    return found


def _exclusive(document: DeploymentDocument) -> bool:
    """Whether an instance wants its device alone."""
    stated = any(device.sharing == "exclusive" for device in document.devices)
    return stated or (document.resources is not None and document.resources.exclusive)


def _candidate(
    machine: MachineShape, place: Place, request: SizingRequest, *, exclusive: bool
) -> Candidate:
    gpu = place.gpu
    declared = request.resources is not None
    stated = declared or request.startup_bytes is not None
    return Candidate(
        host=machine.host,
        gpu=gpu.id if gpu is not None else None,
        gpu_uuid=gpu.uuid if gpu is not None else None,
        charges=place.charges,
        startup=StartupSource.DECLARED if stated else StartupSource.DERIVED,
        declared=declared,
        exclusive=exclusive,
    )

"""From a deployment document to a complete specification, before any machine is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from capyctl.config.check import check
from capyctl.config.deployment import (
    INITIALIZE_MIN_S,
    REQUEST_DEADLINE_MAX_S,
    REQUEST_DEADLINE_MIN_S,
    WAKE_MIN_S,
    DeploymentDocument,
)
from capyctl.config.drafts import check_draft
from capyctl.config.engine_config import refused_field
from capyctl.config.problems import InvalidDocument, ProblemClass, invalid, unsupported
from capyctl.config.publication import find_profile
from capyctl.config.sources import SourcePolicy, materialise
from capyctl.domain.canonical import canonical_json
from capyctl.domain.devices import Profile
from capyctl.domain.errors import Refused
from capyctl.domain.profiles import NEVER_PARK
from capyctl.domain.specs import DeploymentSpec, ModelTask, Residency

TENSORFOLD_DEADLINE_S = 1800.0


class CheckExtraArgs(Protocol):
    def __call__(
        self,
        family: str,
        profile: Profile,
        extra_args: Sequence[str],
        *,
        accepted: bool = True,
        declared: frozenset[str] = frozenset(),
    ) -> None:
        """Raises ValueError naming the field and the option, never its value."""


class ResolveEnv(Protocol):
    def __call__(
        self, family: str, profile: Profile, document: Mapping[str, str]
    ) -> dict[str, str]:
        """Profile's and document's variables in one. Raises ValueError with a token."""


@attrs.frozen(kw_only=True)
class Checks:
    """What only the engines know of a document's arguments and variables."""

    extra_args: CheckExtraArgs
    env: ResolveEnv


@attrs.frozen(kw_only=True)
class HostDefaults:
    """What the one host that may run a deployment says for it."""

    host: str
    request_deadline_s: float = 1800.0
    explicit: bool = False
    """The host's `lifecycle.activation: explicit`, for everything that may run on it."""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    sources: SourcePolicy = attrs.field(factory=SourcePolicy)


def complete_deployment(
    document: Mapping[str, Any],
    *,
    profiles: tuple[Profile, ...],
    models_root: str,
    defaults: HostDefaults,
    checks: Checks,
) -> DeploymentSpec:
    """The document, checked and with everything stated that has a default.

    ``models_root`` is absolute; relative model paths are inside it.

    Raises:
        Refused: ``invalid_config`` (``details.path``), ``profile_not_published``
            (``details.profile``, ``.hosts``), ``unsupported_capability``, ``host_ineligible``,
            ``host_policy_denied``. Nothing of the document's values is in a message.
    """
    try:
        parsed = check(DeploymentDocument, document, what="deployment")
    except InvalidDocument as refused:
        raise refused.refusal() from None
    _check_placement(parsed, defaults)
    _check_names(parsed)
    profile = find_profile(parsed, profiles, host=defaults.host)
    files = materialise(parsed.model, document, models_root, defaults.sources)
    _check_engine(parsed, profile, checks)
    check_draft(parsed, profile)
    _check_routes(parsed, profile)
    _check_residency(parsed, profile)
    deadline_s = _deadline_s(parsed, profile, defaults)
    _check_timeouts(parsed, deadline_s)
    completed = _completed(document, parsed, profile.name)
    counted_apart = {key: value for key, value in completed.items() if key != "instances"}
    return DeploymentSpec(
        name=parsed.name,
        routes=tuple(parsed.routes or (parsed.name,)),
        profile=profile.name,
        family=profile.family,
        instances=parsed.instances,
        model_path=files.path,
        task=ModelTask(parsed.engine_config.task),
        draft_path=files.draft_path,
        source=files.source,
        expected_digest=parsed.model.expected_digest,
        residency=Residency(parsed.residency) if parsed.residency else None,
        explicit=defaults.explicit or parsed.lifecycle.activation == "explicit",
        warm=parsed.lifecycle.warm,
        allowed_hosts=_allowed_hosts(parsed),
        request_deadline_s=deadline_s,
        initialize_s=parsed.timeouts.initialize,
        wake_s=parsed.timeouts.wake,
        document=canonical_json(completed),
        engine_part=canonical_json(counted_apart),
    )


def complete_offline(document: Mapping[str, Any]) -> str:
    """The completed document as canonical JSON, checked as far as no host is needed for it.

    Raises:
        InvalidDocument: as `complete_deployment`, where the document alone shows it.
        Refused: likewise.
    """
    parsed = check(DeploymentDocument, document, what="deployment")
    _check_devices(parsed)
    _check_names(parsed)
    stated = parsed.runtime_profile or parsed.engine
    if stated is None:
        raise invalid(ProblemClass.MISSING, "engine", "state engine or runtime_profile")
    materialise(parsed.model, document, "/", SourcePolicy())
    if parsed.request_deadline is not None:
        _check_timeouts(parsed, parsed.request_deadline)
    return canonical_json(_completed(document, parsed, stated))


def _completed(
    document: Mapping[str, Any], parsed: DeploymentDocument, profile_name: str
) -> dict[str, Any]:
    """What the operator wrote, and the fixed defaults; derived figures are not part of it."""
    written = {key: value for key, value in document.items() if value is not None}
    written.pop("engine", None)
    model = document["model"]
    files = {"path": model} if isinstance(model, str) else dict(model)
    return {
        "schema_version": 1,
        "kind": "deployment",
        "routes": [parsed.name],
        "recipe": "standard",
        "recovery": "reconcile",
        **written,
        "runtime_profile": profile_name,
        "model": {
            **files,
            "revision": parsed.model.revision,
            "content_fingerprint": parsed.model.content_fingerprint,
        },
    }


# Where it may run


def _allowed_hosts(parsed: DeploymentDocument) -> tuple[str, ...]:
    if parsed.host is not None:
        return (parsed.host,)
    return tuple(parsed.placement.hosts or ())


def _check_placement(parsed: DeploymentDocument, defaults: HostDefaults) -> None:
    topology, placement = parsed.topology, parsed.placement
    if topology.tensor_parallel * topology.pipeline_parallel > 1:
        raise unsupported(
            "topology",
            "group_placement_required: one engine over several devices needs several machines "
            "named in placement.hosts, and this is one machine; use 1 and 1",
        )
    if parsed.host is not None and placement.hosts is not None:
        raise invalid(ProblemClass.CONFLICT, "host", "placement.hosts states the same")
    allowed = _allowed_hosts(parsed)
    if len(set(allowed)) != len(allowed):
        raise unsupported("placement.hosts", "a host is named twice")
    if allowed and defaults.host not in allowed:
        raise Refused(
            "host_ineligible",
            f"None of the hosts that the document allows is known here; known: {defaults.host}",
        )
    if any(defaults.labels.get(key) != value for key, value in placement.selector.items()):
        raise Refused(
            "host_policy_denied", f"{defaults.host}: its labels do not match placement.selector"
        )
    most = placement.max_per_host
    if most is not None and most < parsed.instances:
        detail = f"{most} on one host leave no place for {parsed.instances} instances"
        raise unsupported("placement.max_per_host", detail)
    _check_devices(parsed)


def _check_devices(parsed: DeploymentDocument) -> None:
    if len(parsed.devices) > 1:
        raise Refused(
            "unsupported_capability",
            "multi_gpu_unsupported at `devices`: one instance runs on one device of a machine",
        )
    named = {device.id for device in parsed.devices if device.id is not None}
    in_resources = parsed.resources.device_ids() if parsed.resources is not None else frozenset()
    if len(in_resources) > 1:
        raise Refused(
            "unsupported_capability",
            "multi_gpu_unsupported at `resources`: one instance runs on one device of a machine",
        )
    if named and in_resources and named != in_resources:
        raise invalid(ProblemClass.CONFLICT, "devices[0].id", "resources name another device")


# Names


def _check_names(parsed: DeploymentDocument) -> None:
    routes = parsed.routes or []
    if len(set(routes)) != len(routes):
        raise unsupported("routes", "a route is named twice")


def _check_routes(parsed: DeploymentDocument, profile: Profile) -> None:
    """llama-server would take such a name apart."""
    served = (parsed.routes or [parsed.name])[0]
    if profile.family == "llamacpp" and any(c == "," or c.isspace() for c in served):
        path = "routes[0]" if parsed.routes else "name"
        raise unsupported(path, "llama.cpp takes no served name with a comma or a space")


# The engine's part


def _check_engine(parsed: DeploymentDocument, profile: Profile, checks: Checks) -> None:
    settings = parsed.engine_config
    found = refused_field(profile.family, settings)
    if found is not None:
        raise unsupported(f"engine_config.{found[0]}", found[1])
    if settings.trust_remote_code and not profile.trust_remote_code:
        raise unsupported(
            "engine_config.trust_remote_code",
            f"profile {profile.name} must allow it with security.trust_remote_code",
        )
    _check_memory(parsed, profile)
    try:
        checks.extra_args(
            profile.family,
            profile,
            settings.extra_args,
            accepted=settings.accept_extra_args,
            declared=settings.stated(),
        )
    except ValueError as problem:
        path = "engine_config.extra_args"
        raise invalid(ProblemClass.CONFLICT, path, _detail(problem, path)) from None
    try:
        checks.env(profile.family, profile, settings.env)
    except ValueError as problem:
        raise unsupported("engine_config.env", _detail(problem, "engine_config.env")) from None


def _detail(problem: ValueError, path: str) -> str:
    """What the engines say of a field, without the field's name, which the message has."""
    return str(problem).removeprefix(f"{path}: ")


def _check_memory(parsed: DeploymentDocument, profile: Profile) -> None:
    memory = parsed.engine_config.memory
    if profile.family == "tensorfold":
        if parsed.resources is None:
            raise invalid(ProblemClass.MISSING, "resources", "TensorFold's memory is not derived")
        if parsed.engine_config.context_length is None:
            path = "engine_config.context_length"
            raise invalid(ProblemClass.MISSING, path, "TensorFold must be told")
    if memory.startup is not None:
        if parsed.resources is not None:
            path = "engine_config.memory.startup"
            raise invalid(ProblemClass.CONFLICT, path, "resources.cold states the same")
        if memory.request is not None and memory.startup < memory.request:
            path = "engine_config.memory.startup"
            raise unsupported(path, "less than engine_config.memory.request")
    if memory.request and memory.kv_cache and memory.kv_cache >= memory.request:
        path = "engine_config.memory.kv_cache"
        raise unsupported(path, "leaves nothing of engine_config.memory.request for weights")


def _check_residency(parsed: DeploymentDocument, profile: Profile) -> None:
    """What no machine can change; the rest is found when a machine is."""
    if parsed.residency in (None, "restart_only"):
        return
    if profile.family in NEVER_PARK:
        raise Refused(
            "unsupported_capability",
            f"capability_missing at `residency`: {profile.family} never parks; use restart_only",
        )
    if not profile.deep_park:
        raise unsupported(
            "residency",
            f"security.deep_park of profile {profile.name} is disabled: enable it there, or "
            "declare residency restart_only",
        )


# Time


def _deadline_s(parsed: DeploymentDocument, profile: Profile, defaults: HostDefaults) -> float:
    stated = parsed.request_deadline
    if stated is None:
        least = TENSORFOLD_DEADLINE_S if profile.family == "tensorfold" else 0.0
        return max(least, defaults.request_deadline_s)
    if not REQUEST_DEADLINE_MIN_S <= stated <= REQUEST_DEADLINE_MAX_S:
        bounds = f"{REQUEST_DEADLINE_MIN_S}s to {REQUEST_DEADLINE_MAX_S}s"
        raise unsupported("request_deadline", f"expected {bounds}")
    return stated


def _check_timeouts(parsed: DeploymentDocument, deadline_s: float) -> None:
    bounds = (
        ("initialize", parsed.timeouts.initialize, INITIALIZE_MIN_S),
        ("wake", parsed.timeouts.wake, WAKE_MIN_S),
    )
    for name, stated, least in bounds:
        if stated is None:
            continue
        if stated < least:
            raise unsupported(f"timeouts.{name}", f"expected at least {least}s")
        if stated > deadline_s:
            detail = f"longer than the request deadline of {deadline_s:g}s"
            raise unsupported(f"timeouts.{name}", detail)

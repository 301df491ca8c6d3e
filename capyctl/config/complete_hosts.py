"""From a deployment document to a specification that several machines may run.

Each machine completes the document as if it were alone; what it comes to is what the first that can
run it says, without what is that machine's own: the profile's exact name, and where files lie.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from capyctl.config.check import check
from capyctl.config.complete import Checks, HostDefaults, complete_deployment
from capyctl.config.deployment import DeploymentDocument
from capyctl.config.engine_config import FAMILIES
from capyctl.config.problems import InvalidDocument, ProblemClass, invalid, unsupported
from capyctl.config.sources import SourcePolicy
from capyctl.domain.canonical import canonical_json
from capyctl.domain.devices import Profile
from capyctl.domain.errors import Refused
from capyctl.domain.specs import DeploymentSpec, Strategy

ROOT = "/.models-directory-of-each-host"
"""Stands for every host's own; paths below it are relative in a specification."""
NAMES_SHOWN_MAX = 10


@attrs.frozen(kw_only=True)
class HostOffer:
    """What one machine says of itself, as far as documents are completed by it."""

    id: str
    name: str
    profiles: tuple[Profile, ...]
    labels: Mapping[str, str] = attrs.field(factory=dict)
    explicit: bool = False
    request_deadline_s: float = 600.0
    sources: SourcePolicy = attrs.field(factory=SourcePolicy)


def complete_for_hosts(
    document: Mapping[str, Any], offers: Sequence[HostOffer], *, checks: Checks
) -> DeploymentSpec:
    """As `complete_deployment`, for those of ``offers`` that the document allows.

    Relative model paths stay relative: each machine has its own models directory.

    Raises:
        Refused: also ``host_ineligible`` for a host that is named and not known, or where there
            is none at all, and ``host_policy_denied`` when no allowed host has the labels.
    """
    try:
        parsed = check(DeploymentDocument, document, what="deployment")
    except InvalidDocument as refused:
        raise refused.refusal() from None
    _check_topology(parsed)
    allowed = _allowed(parsed, offers)
    found, refusals = _completed(document, parsed, allowed, checks)
    if not found:
        raise _refusal(parsed, allowed, refusals)
    most = parsed.placement.max_per_host
    if most is not None and most * len(found) < parsed.instances:
        raise unsupported(
            "placement.max_per_host",
            f"{most} on each of {len(found)} hosts that can run it leave no place for "
            f"{parsed.instances} instances",
        )
    return _joined(document, parsed, found[0])


def profile_on(spec: DeploymentSpec, profiles: Sequence[Profile]) -> Profile:
    """The profile that runs a completed deployment on one machine.

    Raises:
        Refused: ``profile_not_published``.
    """
    revision = json.loads(spec.document).get("runtime_profile_revision")
    found = [one for one in profiles if one.name == spec.profile]
    if not found and spec.profile in FAMILIES:
        found = [one for one in profiles if one.family == spec.profile]
    fitting = [one for one in found if one.family == spec.family]
    if len(fitting) != 1 or revision not in (None, fitting[0].revision):
        names = ", ".join(one.name for one in profiles) or "none"
        raise Refused(
            "profile_not_published",
            f"it does not publish profile {spec.profile} (published: {names}); register the "
            "engine there with `capyctl engine add`",
        )
    return fitting[0]


def labels_match(spec: DeploymentSpec, labels: Mapping[str, str]) -> bool:
    """Whether the document's selector takes a machine with these labels."""
    placement = json.loads(spec.document).get("placement") or {}
    selector: Mapping[str, str] = placement.get("selector") or {}
    return all(labels.get(key) == value for key, value in selector.items())


def _check_topology(parsed: DeploymentDocument) -> None:
    topology = parsed.topology
    if topology.tensor_parallel * topology.pipeline_parallel > 1:
        raise Refused(
            "unsupported_capability",
            "capability_missing:engine_groups at `topology`: one engine over several devices is "
            "not part of this release; use 1 and 1",
        )


def _allowed(parsed: DeploymentDocument, offers: Sequence[HostOffer]) -> list[HostOffer]:
    placement = parsed.placement
    if parsed.host is not None and placement.hosts is not None:
        raise invalid(ProblemClass.CONFLICT, "host", "placement.hosts states the same")
    wanted = [parsed.host] if parsed.host is not None else list(placement.hosts or ())
    if len(set(wanted)) != len(wanted):
        raise unsupported("placement.hosts", "a host is named twice")
    named = [one for one in offers if not wanted or one.name in wanted or one.id in wanted]
    known = {word for one in offers for word in (one.name, one.id)}
    strange = [word for word in wanted if word not in known]
    if strange or not named:
        there = _listed([one.name for one in offers])
        what = f"No host {_listed(strange)} is enrolled" if strange else "No host is enrolled"
        raise Refused(
            "host_ineligible",
            f"{what} and has connected; hosts here: {there}. Let machines join with `capyctl "
            "invite host`",
        )
    selector = placement.selector.items()
    fitting = [one for one in named if all(one.labels.get(k) == v for k, v in selector)]
    if not fitting:
        raise Refused(
            "host_policy_denied",
            f"The labels of no allowed host match placement.selector ("
            f"{_listed([one.name for one in named])}); labels are set in a host's document",
        )
    return sorted(fitting, key=lambda one: one.name)


def _completed(
    document: Mapping[str, Any],
    parsed: DeploymentDocument,
    allowed: Sequence[HostOffer],
    checks: Checks,
) -> tuple[list[DeploymentSpec], list[Refused]]:
    """What the document comes to on each machine that can run it, and why not on others."""
    alone = {key: value for key, value in document.items() if key not in ("host", "placement")}
    deadline_s = min(one.request_deadline_s for one in allowed)
    explicit = any(one.explicit for one in allowed)
    found: list[DeploymentSpec] = []
    refusals: list[Refused] = []
    for one in allowed:
        defaults = HostDefaults(
            host=one.name,
            request_deadline_s=deadline_s,
            explicit=explicit,
            sources=attrs.evolve(one.sources, root=None),
        )
        try:
            spec = complete_deployment(
                alone,
                profiles=one.profiles,
                models_root=ROOT,
                defaults=defaults,
                checks=checks,
            )
        except Refused as refused:
            refusals.append(refused)
            continue
        if not found or spec.family == found[0].family:
            found.append(spec)
    return found, refusals


def _refusal(
    parsed: DeploymentDocument, allowed: Sequence[HostOffer], refusals: Sequence[Refused]
) -> Refused:
    """The first that is about the document; else that no machine publishes the profile."""
    about = [one for one in refusals if one.kind.code != "profile_not_published"]
    if about:
        return about[0]
    if len(allowed) == 1:
        return refusals[0]
    wanted = parsed.runtime_profile or parsed.engine
    hosts = {one.name: [profile.name for profile in one.profiles] for one in allowed}
    listed = "; ".join(f"{name}: {', '.join(names) or 'none'}" for name, names in hosts.items())
    return Refused(
        "profile_not_published",
        f"No allowed host publishes profile {wanted} ({listed}). Register the engine there with "
        "`capyctl engine add`, or name a published profile",
        {"profile": wanted, "hosts": hosts},
    )


def _joined(
    document: Mapping[str, Any], parsed: DeploymentDocument, spec: DeploymentSpec
) -> DeploymentSpec:
    """Without what is one machine's own, and with what it says of machines."""
    wanted = parsed.runtime_profile or parsed.engine
    assert wanted is not None
    placed = {key: document[key] for key in ("host", "placement") if document.get(key) is not None}
    completed = {**json.loads(spec.document), **placed, "runtime_profile": wanted}
    counted_apart = {key: value for key, value in completed.items() if key != "instances"}
    hosts = (parsed.host,) if parsed.host is not None else tuple(parsed.placement.hosts or ())
    return attrs.evolve(
        spec,
        profile=wanted,
        model_path=_own(spec.model_path),
        draft_path=None if spec.draft_path is None else _own(spec.draft_path),
        allowed_hosts=hosts,
        strategy=Strategy(parsed.placement.strategy),
        max_per_host=parsed.placement.max_per_host,
        document=canonical_json(completed),
        engine_part=canonical_json(counted_apart),
    )


def _own(path: str) -> str:
    return path.removeprefix(f"{ROOT}/")


def _listed(names: Sequence[str]) -> str:
    more = ", …" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more or "none"

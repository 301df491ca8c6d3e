"""A deployment on several machines: which may run it, and what it comes to on each.

What differs between machines (paths, engines, residency, windows) is kept once for all that agree;
the candidates of all of them are together in `Deployment.resolved`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from capyctl.domain.hosts import HostRecord, HostState
from capyctl.domain.ids import HostId
from capyctl.domain.launches import ModelFiles
from capyctl.domain.specs import DeploymentSpec, HostVariant, ResolvedSpec
from capyctl.machines.deployment import Deployment
from capyctl.messages.instance import StartOrder


def named_hosts(spec: DeploymentSpec, hosts: Iterable[HostRecord]) -> tuple[HostRecord, ...]:
    """Machines that the document names, or all, where they are enrolled and have connected once."""
    allowed = spec.allowed_hosts
    found = (
        record
        for record in hosts
        if record.state is HostState.ENROLLED
        and record.publication is not None
        and (not allowed or record.id in allowed or record.name in allowed)
    )
    return tuple(sorted(found, key=lambda record: record.id))


def is_selected(spec: DeploymentSpec, record: HostRecord) -> bool:
    """Whether its labels are those that the document asks for."""
    labels = {} if record.publication is None else record.publication.labels
    return all(labels.get(key) == value for key, value in spec.selector.items())


def fits_of(deployment: Deployment) -> dict[HostId, ResolvedSpec]:
    """What it comes to on each machine that can run it, each with its own candidates."""
    resolved = deployment.resolved
    if resolved is None:
        return {}
    found: dict[HostId, ResolvedSpec] = {}
    for candidate in resolved.candidates:
        settings = _settings(resolved, deployment.variants, candidate.host)
        known = found.get(candidate.host)
        own = (candidate,) if known is None else (*known.candidates, candidate)
        found[candidate.host] = attrs.evolve(settings, candidates=own)
    return found


def fit_on(deployment: Deployment, host: HostId) -> ResolvedSpec | None:
    """What it comes to on one machine; None where it cannot run there."""
    resolved = deployment.resolved
    if resolved is None:
        return None
    own = tuple(c for c in resolved.candidates if c.host == host)
    if not own:
        return None
    return attrs.evolve(_settings(resolved, deployment.variants, host), candidates=own)


def joined(
    deployment: Deployment, fits: Mapping[HostId, ResolvedSpec]
) -> tuple[ResolvedSpec | None, tuple[HostVariant, ...]]:
    """The reverse of `fits_of`: what most of them agree on, and the others."""
    groups: list[tuple[ResolvedSpec, list[HostId]]] = []
    for host in sorted(fits):
        settings = attrs.evolve(fits[host], candidates=())
        mine = next((hosts for known, hosts in groups if known == settings), None)
        if mine is None:
            groups.append((settings, [host]))
        else:
            mine.append(host)
    if not groups:
        return None, ()
    before = deployment.resolved
    main = max(
        groups,
        key=lambda group: (
            before is not None and group[0] == attrs.evolve(before, candidates=()),
            len(group[1]),
        ),
    )
    candidates = tuple(c for host in sorted(fits) for c in fits[host].candidates)
    others = tuple(
        HostVariant(hosts=tuple(hosts), settings=settings)
        for settings, hosts in groups
        if settings is not main[0]
    )
    return attrs.evolve(main[0], candidates=candidates), others


def with_fit(deployment: Deployment, host: HostId, fit: ResolvedSpec | None) -> Deployment:
    """The deployment with what it comes to on ``host`` from now on; None: nothing."""
    fits = fits_of(deployment)
    fits.pop(host, None)
    if fit is not None:
        fits[host] = fit
    resolved, variants = joined(deployment, fits)
    return attrs.evolve(deployment, resolved=resolved, variants=variants)


def _settings(
    resolved: ResolvedSpec, variants: tuple[HostVariant, ...], host: HostId
) -> ResolvedSpec:
    variant = next((v for v in variants if host in v.hosts), None)
    return resolved if variant is None else variant.settings


def order_on(order: StartOrder, host: HostId) -> StartOrder:
    """``order`` as it is carried out on ``host``; nothing of it is lost for another attempt."""
    variant = next((v for v in order.variants if host in v.hosts), None)
    if variant is None:
        return order
    others = {h for v in order.variants for h in v.hosts}
    stay = tuple(sorted({c.host for c in order.candidates} - others))
    before = ResolvedSpec(
        residency=order.residency,
        engine=order.engine,
        candidates=(),
        windows=order.windows,
        weights_bytes=None,
        provisional=False,
        model_path=None if order.files is None else order.files.path,
    )
    rest = tuple(v for v in order.variants if v is not variant)
    if stay:
        rest = (*rest, HostVariant(hosts=stay, settings=before))
    settings = variant.settings
    return attrs.evolve(
        order,
        engine=settings.engine,
        residency=settings.residency,
        windows=settings.windows,
        files=_moved(order.files, settings),
        variants=rest,
    )


def _moved(files: ModelFiles | None, settings: ResolvedSpec) -> ModelFiles | None:
    if files is None or settings.model_path is None:
        return files
    draft, draft_path = files.draft, settings.engine.draft_path
    if draft is not None and draft_path is not None:
        draft = attrs.evolve(draft, path=draft_path)
    return attrs.evolve(files, path=settings.model_path, draft=draft)

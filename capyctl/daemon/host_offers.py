"""Documents and files of deployments on a server: what they come to on each of its hosts."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

import attrs

from capyctl.config.complete import Checks
from capyctl.config.complete_hosts import (
    HostOffer,
    complete_for_hosts,
    labels_match,
    profile_on,
)
from capyctl.config.resolve import resolve
from capyctl.config.sources import SourcePolicy
from capyctl.control.directory import Directory
from capyctl.domain.checkpoints import CheckpointFacts
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import HostPublication, HostRecord, HostSources, HostState
from capyctl.domain.ids import HostId
from capyctl.domain.specs import DeploymentSpec, ResolvedSpec
from capyctl.engines.arguments import check_extra_args
from capyctl.engines.env_rules import resolve_env

FETCHED = "sources/"
"""Begins the relative path of files that are fetched."""


@attrs.frozen(kw_only=True)
class HostsCompleter:
    """Documents to specifications, with what enrolled hosts publish now."""

    directory: Directory
    _offers: dict[HostId, tuple[HostRecord, HostOffer | None]] = attrs.field(
        init=False, factory=dict
    )
    """What each record came to: made once, because it is asked for with every document."""

    def __call__(self, document: Mapping[str, Any]) -> DeploymentSpec:
        records = self.directory.hosts.values()
        offers = [found for one in records if (found := self._offer(one)) is not None]
        checks = Checks(extra_args=check_extra_args, env=resolve_env)
        return complete_for_hosts(document, offers, checks=checks)

    def _offer(self, record: HostRecord) -> HostOffer | None:
        known = self._offers.get(record.id)
        if known is None or known[0] is not record:
            known = self._offers[record.id] = (record, _offer(record))
        return known[1]


@attrs.frozen(kw_only=True)
class HostsResolver:
    """Specifications to charges and engine settings on one host: `control.deployment.Resolver`."""

    directory: Directory

    def path_on(self, path: str, host: HostId) -> str:
        if posixpath.isabs(path):
            return path
        publication = self._publication(host)
        root = publication.models_root
        if path.startswith(FETCHED) and publication.sources.root is not None:
            root = posixpath.join(root, publication.sources.root)
        return posixpath.join(root, path)

    def __call__(self, spec: DeploymentSpec, facts: CheckpointFacts, host: HostId) -> ResolvedSpec:
        publication = self._publication(host)
        if not labels_match(spec, publication.labels):
            raise Refused(
                "host_policy_denied", "selector_mismatch: its labels do not match the selector"
            )
        draft = None if spec.draft_path is None else self.path_on(spec.draft_path, host)
        there = attrs.evolve(spec, model_path=self.path_on(spec.model_path, host), draft_path=draft)
        resolved = resolve(
            there,
            profile=profile_on(spec, publication.profiles),
            machine=publication.shape,
            facts=facts,
            kv_default_bytes=publication.kv_default_bytes,
        )
        return attrs.evolve(resolved, model_path=there.model_path)

    def _publication(self, host: HostId) -> HostPublication:
        record = self.directory.hosts.get(host)
        if record is None or record.publication is None:
            raise Refused("host_ineligible", f"host {host} has not connected yet")
        return record.publication


def _offer(record: HostRecord) -> HostOffer | None:
    publication = record.publication
    if record.state is HostState.REVOKED or publication is None:
        return None
    return HostOffer(
        id=record.id,
        name=record.name,
        profiles=publication.profiles,
        labels=publication.labels,
        explicit=publication.explicit,
        request_deadline_s=publication.queue.request_deadline_s,
        sources=_policy(publication.sources),
    )


def _policy(sources: HostSources) -> SourcePolicy:
    return SourcePolicy(
        huggingface=sources.huggingface,
        http=sources.http,
        plain_http=sources.plain_http,
        allowed_hosts=sources.allowed_hosts,
        max_bytes=sources.max_bytes,
        endpoint=sources.endpoint,
    )

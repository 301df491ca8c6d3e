"""All that a host says of itself to its server."""

from __future__ import annotations

from capyctl import __version__
from capyctl.config.host_settings import HostSettings
from capyctl.config.sources import SourcePolicy
from capyctl.daemon.machine import OwnMachine
from capyctl.daemon.publishing import Publishing
from capyctl.domain.hosts import (
    HostPublication,
    HostSources,
    IngressAddress,
    IngressTransport,
)
from capyctl.machines.link import CAPABILITIES


def host_publication(
    settings: HostSettings, machine: OwnMachine, publishing: Publishing
) -> HostPublication:
    """With the engines that are registered now."""
    transport = IngressTransport.MUTUAL_TLS
    if settings.ingress_plain:
        transport = IngressTransport.TRUSTED_PRIVATE_LINK
    return HostPublication(
        shape=machine.shape,
        profiles=publishing.offered,
        labels=dict(settings.labels),
        version=__version__,
        capabilities=tuple(sorted(CAPABILITIES)),
        queue=settings.queue,
        explicit=settings.explicit,
        ingress=IngressAddress(
            host=settings.ingress.host, port=settings.ingress.port, transport=transport
        ),
        models_root=settings.models_root,
        kv_default_bytes=settings.kv_default_bytes,
        parked_growth_limit=settings.parked_growth_limit,
        max_parked_count=settings.max_parked,
        sources=_sources(settings.sources),
    )


def _sources(policy: SourcePolicy) -> HostSources:
    return HostSources(
        huggingface=policy.huggingface,
        http=policy.http,
        plain_http=policy.plain_http,
        allowed_hosts=policy.allowed_hosts,
        max_bytes=policy.max_bytes,
        root=policy.root,
        endpoint=policy.endpoint,
    )

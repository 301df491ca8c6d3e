"""What a host role runs with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from capyctl.config.blocks import split_address
from capyctl.config.host_document import HostDocument, HostPolicy, split_named
from capyctl.config.named_settings import HOST_SETTINGS
from capyctl.config.profiles import read_engines
from capyctl.config.role_document import (
    Given,
    Laid,
    Role,
    check_folder,
    find_engines_path,
    read_role,
    unsupported_at,
)
from capyctl.config.role_settings import (
    Address,
    MachineSettings,
    MemoryPolicy,
    address_of,
    expanded,
    queue_of,
    sources_of,
)

HOST = Role(kind="host", model=HostDocument, named=HOST_SETTINGS)


@attrs.frozen(kw_only=True)
class DomainPolicy:
    """Limits that a document states for one pool of memory; bytes."""

    device: str | None
    managed_limit_bytes: int
    free_reserve_bytes: int
    parked_limit_bytes: int


@attrs.frozen(kw_only=True)
class HostSettings(MachineSettings):
    """Everything a host role is told, checked."""

    domains: Mapping[str, DomainPolicy]
    """By name: ``unified``, or ``system`` and ``gpuN``. Empty: derived from the machine."""
    gpu_uuids: Mapping[str, str]
    """GPUs that must be the very ones."""
    ingress: Address
    """Where the server reaches it; a name, or an address."""
    ingress_bind: Address
    ingress_plain: bool
    """Plain HTTP on a private link instead of mutual TLS."""
    report_s: float
    """Between two heartbeats with samples."""
    max_parked: int | None


def load_host(state_root: Path, given: Given) -> HostSettings:
    """As `read_role`, of a host.

    Raises:
        InvalidDocument: also a directory that cannot be chosen, and an ingress without an
            address that the server could dial.
    """
    laid = read_role(HOST, state_root, given)
    _check(laid.parsed, state_root)
    return _settings(laid, state_root, given)


def _check(parsed: HostDocument, state_root: Path) -> None:
    check_folder("state_dir", parsed.state_dir, state_root, HOST.kind)
    check_folder("identity_dir", parsed.identity_dir, state_root / "identity", HOST.kind)
    check_folder("runtime_dir", parsed.runtime_dir, state_root / "runtime", HOST.kind)
    engine = parsed.local_engine
    if engine.sglang is not None and engine.args:
        detail = "SGLang takes no host-fixed arguments"
        raise unsupported_at("local_engine.args", detail, HOST.kind)


def _settings(laid: Laid[HostDocument], state_root: Path, given: Given) -> HostSettings:
    parsed, env, policy = laid.parsed, given.env, laid.parsed.resource_policy
    engines_path = find_engines_path(env, given.config_path)
    return HostSettings(
        state_root=state_root,
        document_path=laid.path,
        shutdown_drain_s=parsed.shutdown.drain_timeout,
        settings=laid.settings,
        host=parsed.name,
        engines_path=engines_path,
        models_root=expanded(parsed.model_store.path, env),
        profiles=(
            *parsed.local_engine.profiles(),
            *(
                profile.profile(name, source="document")
                for name, profile in parsed.runtime_profiles.items()
            ),
            *read_engines(engines_path),
        ),
        sources=sources_of(parsed.model_sources, env),
        trust_declared_digest=parsed.checkpoints.trust_declared_digest,
        explicit=parsed.lifecycle.activation == "explicit",
        memory=MemoryPolicy(),
        parked_growth_limit=policy.parked_growth_limit,
        queue=queue_of(policy.queue),
        engine_ports=(policy.endpoint_port_range.start, policy.endpoint_port_range.end),
        kv_default_bytes=None,
        labels=dict(policy.labels),
        domains=_domains(policy),
        gpu_uuids={
            name: device.physical_gpu_uuid
            for name, device in policy.devices.items()
            if device.physical_gpu_uuid is not None
        },
        ingress=_ingress(parsed),
        ingress_bind=address_of(parsed.ingress.bind),
        ingress_plain=parsed.ingress.transport == "trusted_private_link",
        report_s=parsed.load_report_interval,
        max_parked=policy.max_parked,
    )


def _domains(policy: HostPolicy) -> dict[str, DomainPolicy]:
    return {
        name: DomainPolicy(
            device=domain.device,
            managed_limit_bytes=domain.managed_limit,
            free_reserve_bytes=domain.free_reserve,
            parked_limit_bytes=domain.parked_limit,
        )
        for name, domain in policy.domains.items()
    }


def _ingress(parsed: HostDocument) -> Address:
    stated = parsed.ingress.address
    if stated is None:
        host, port = split_address(parsed.ingress.bind)
        if host in ("0.0.0.0", "::"):
            detail = (
                "state the address and port at which the server reaches this machine, as "
                "10.0.0.5:8444: bind is on every address"
            )
            raise unsupported_at("ingress.address", detail, HOST.kind)
        return Address(host=host, port=port)
    host, port = split_named(stated)
    return Address(host=host, port=port)

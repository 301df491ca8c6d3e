"""What the management API says of one machine: its session, memory, engines, and warnings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from capyctl.domain.devices import MemoryDomain
from capyctl.domain.hosts import Compatibility, HostPublication, IngressTransport
from capyctl.domain.ids import DomainName
from capyctl.domain.units import gib
from capyctl.machines.link import CAPABILITIES

SAMPLE_STALE_S = 10.0
CERTIFICATE_DAYS_MIN = 7
_DAY_MS = 86_400_000
COMPATIBILITY_TEXT: Mapping[Compatibility, str] = {
    Compatibility.UPGRADE_RECOMMENDED: "one minor version behind this server: upgrade it soon",
    Compatibility.UPGRADE_REQUIRED: (
        "too old for this server: its models may only be stopped until it is upgraded"
    ),
    Compatibility.SERVER_BEHIND: "newer than this server: upgrade the server first",
}


@attrs.frozen(kw_only=True)
class HostUse:
    """What is charged, held and seen on one memory domain, in bytes."""

    charged_bytes: int = 0
    parked_bytes: int = 0
    outside_bytes: int = 0
    """Held by programs that are not ours, as last seen."""
    available_bytes: int | None = None


@attrs.frozen(kw_only=True)
class HostedInstance:
    """One instance that holds something on the machine."""

    deployment: str
    name: str
    index: int
    observed: str
    profile: str = ""
    """That its deployment names."""


@attrs.frozen(kw_only=True)
class HostParts:
    """Everything that one machine's entry is made of."""

    id: str
    name: str
    state: str
    """``online``, ``suspended``, ``offline`` or ``revoked``."""
    state_s: float | None = None
    """For how long it has been so; None where that was not seen."""
    ineligible: str | None = None
    draining: bool = False
    compatibility: Compatibility = Compatibility.SUPPORTED
    publication: HostPublication | None = None
    enrolled_at_ms: int | None = None
    revoked_at_ms: int | None = None
    certificate_expires_at_ms: int | None = None
    now_ms: int = 0
    use: Mapping[DomainName, HostUse] = attrs.field(factory=dict)
    sample_age_s: float | None = None
    """Of the newest look at its memory; None when there is none."""
    instances: tuple[HostedInstance, ...] = ()
    rival: str | None = None
    """Address of another machine that came with this one's identity a moment ago."""


def render_host(parts: HostParts) -> dict[str, Any]:
    """One entry of `hosts`. Byte counts and times of day are decimal text."""
    published = parts.publication
    entry: dict[str, Any] = {
        "host_id": parts.id,
        "name": parts.name,
        "state": parts.state,
        "eligible": parts.ineligible is None,
        "draining": parts.draining,
        "drained": parts.draining and not parts.instances,
        "compatibility": parts.compatibility.value,
        "binary_version": None if published is None else published.version,
        "capabilities": [] if published is None else list(published.capabilities),
        "labels": {} if published is None else dict(published.labels),
        "profiles": [] if published is None else _profiles(published, parts.instances),
        "gpus": [] if published is None else _gpus(published),
        "memory": [] if published is None else _memory(parts, published),
        "sample_age_ms": None if parts.sample_age_s is None else round(parts.sample_age_s * 1000),
        "ingress": None if published is None else _ingress(published),
        "session": {
            "capabilities_missing": [] if published is None else _missing(published),
            "memory_warnings": _memory_warnings(parts),
        },
        "instances": [
            {
                "deployment_id": one.deployment,
                "name": one.name,
                "index": one.index,
                "observed_state": one.observed,
            }
            for one in parts.instances
        ],
        "warnings": list(warnings(parts)),
    }
    if parts.ineligible is not None:
        entry["ineligible_reason"] = parts.ineligible
    if parts.compatibility in COMPATIBILITY_TEXT:
        entry["compatibility_reason"] = COMPATIBILITY_TEXT[parts.compatibility]
    if parts.state_s is not None:
        entry["state_ms"] = round(parts.state_s * 1000)
    times = {
        "enrolled_at_ms": parts.enrolled_at_ms,
        "revoked_at_ms": parts.revoked_at_ms,
        "certificate_expires_at_ms": parts.certificate_expires_at_ms,
    }
    entry.update({name: str(at_ms) for name, at_ms in times.items() if at_ms is not None})
    return entry


def _profiles(
    published: HostPublication, instances: Sequence[HostedInstance]
) -> list[dict[str, Any]]:
    return [
        {
            "name": profile.name,
            "family": profile.family,
            "revision": str(profile.revision),
            "version": profile.version,
            "deep_park": profile.deep_park,
            "deployments": sorted({one.name for one in instances if one.profile == profile.name}),
        }
        for profile in published.profiles
    ]


def _gpus(published: HostPublication) -> list[dict[str, Any]]:
    return [
        {"id": gpu.id, "uuid": gpu.uuid, "name": gpu.name, "total_bytes": str(gpu.total_bytes)}
        for gpu in published.shape.gpus
    ]


def _memory(parts: HostParts, published: HostPublication) -> list[dict[str, Any]]:
    return [
        _domain(domain, parts.use.get(domain.name, HostUse())) for domain in published.shape.domains
    ]


def _domain(domain: MemoryDomain, use: HostUse) -> dict[str, Any]:
    available = use.available_bytes
    return {
        "domain": domain.name,
        "kind": domain.kind.value,
        "total_bytes": str(domain.total_bytes),
        "managed_limit_bytes": str(domain.managed_limit_bytes),
        "free_reserve_bytes": str(domain.free_reserve_bytes),
        "parked_limit_bytes": str(domain.parked_limit_bytes),
        "charged_bytes": str(use.charged_bytes),
        "parked_bytes": str(use.parked_bytes),
        "outside_bytes": str(use.outside_bytes),
        "available_bytes": None if available is None else str(available),
    }


def _missing(published: HostPublication) -> list[str]:
    """What a host of this release could do, and this one does not."""
    return [name for name in CAPABILITIES if name not in published.capabilities]


def _ingress(published: HostPublication) -> dict[str, Any] | None:
    found = published.ingress
    if found is None:
        return None
    return {"host": found.host, "port": found.port, "transport": found.transport.value}


def warnings(parts: HostParts) -> tuple[str, ...]:
    """What somebody should look at, a sentence each, with what to do."""
    found = [*_session_warnings(parts), *_memory_warnings(parts)]
    published = parts.publication
    if published is not None and not published.profiles:
        found.append("It publishes no engine: register one there with `capyctl engine add`.")
    ingress = None if published is None else published.ingress
    if ingress is not None and ingress.transport is IngressTransport.TRUSTED_PRIVATE_LINK:
        found.append("Requests reach it as plain HTTP (trusted_private_link).")
    doubted = [one for one in parts.instances if one.observed == "uncertain"]
    if doubted and parts.state == "online":
        names = ", ".join(f"{one.name}/{one.index}" for one in doubted)
        found.append(
            f"Not shown to be gone, so that their memory stays charged: {names}. Stop them again."
        )
    return tuple(found)


def _session_warnings(parts: HostParts) -> list[str]:
    found = []
    if parts.state in ("offline", "suspended") and parts.publication is not None:
        since = "" if parts.state_s is None else f" for {parts.state_s:.0f} s"
        kept = "; what runs there stays charged" if parts.instances else ""
        found.append(
            f"Nothing was heard of it{since}{kept}. See that capyctl runs there and reaches us."
        )
    if parts.rival is not None:
        found.append(
            f"Another machine, at {parts.rival}, comes with its identity and is refused: end "
            "capyctl there, and move the `identity` folder of its state directory away."
        )
    if parts.publication is None and parts.state != "revoked":
        found.append("It has never connected: run `capyctl start host` there.")
    if parts.state == "revoked" and parts.instances:
        found.append(
            f"It is revoked, and {len(parts.instances)} of its instances stay charged: recover it "
            "with `capyctl invite host NAME --recover` to settle them."
        )
    if parts.compatibility in COMPATIBILITY_TEXT:
        found.append(f"Its version is {COMPATIBILITY_TEXT[parts.compatibility]}.")
    expires_at_ms = parts.certificate_expires_at_ms
    if expires_at_ms is not None and parts.state != "revoked":
        left_ms = expires_at_ms - parts.now_ms
        if left_ms <= 0:
            found.append("Its certificate has expired: recover it with `--recover`.")
        elif left_ms < CERTIFICATE_DAYS_MIN * _DAY_MS:
            found.append(
                f"Its certificate expires in {left_ms // 3_600_000} hours and was not renewed."
            )
    return found


def _memory_warnings(parts: HostParts) -> list[str]:
    if parts.publication is None or parts.state != "online":
        return []
    found = []
    if parts.sample_age_s is None:
        found.append("Its memory was not looked at yet.")
    elif parts.sample_age_s > SAMPLE_STALE_S:
        found.append(f"Its memory was last looked at {parts.sample_age_s:.0f} s ago.")
    for domain in parts.publication.shape.domains:
        outside = parts.use.get(domain.name, HostUse()).outside_bytes
        if outside > domain.free_reserve_bytes:
            found.append(
                f"Other programs hold {gib(outside)} of {domain.name} memory, more than the "
                f"{gib(domain.free_reserve_bytes)} that are left free for them."
            )
    return found

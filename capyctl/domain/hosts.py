"""Machines that run engines: what is on record of each, what it publishes, and how it got in."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

import attrs

from capyctl.domain.devices import MachineShape, Profile
from capyctl.domain.ids import HostId
from capyctl.domain.units import GIB, MIB


class HostState(enum.Enum):
    ENROLLED = "enrolled"
    REVOKED = "revoked"
    """Its certificates are no good any more; only a recovery lets it in again."""


class Compatibility(enum.Enum):
    """What a host's version lets it do for its server; the texts are those of `list hosts`."""

    SUPPORTED = "supported"
    UPGRADE_RECOMMENDED = "upgrade_recommended"
    """One minor version behind: all of it."""
    UPGRADE_REQUIRED = "upgrade_required"
    """Only stops: no new placement, start, wake or park."""
    SERVER_BEHIND = "server_upgrade_required"
    """Newer than its server: refused until the server is upgraded."""


_ADDRESS = re.compile(r"[A-Za-z0-9._:%-]{1,253}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")


def is_host_name(text: str) -> bool:
    """Whether a host may have this name: 1 to 128 letters and digits, and . _ - inside."""
    return _NAME.fullmatch(text) is not None


class IngressTransport(enum.Enum):
    MUTUAL_TLS = "mutual_tls"
    TRUSTED_PRIVATE_LINK = "trusted_private_link"
    """Plain HTTP, on a loopback, private or overlay address."""


@attrs.frozen(kw_only=True)
class IngressAddress:
    """Where the server's requests reach a host's engines."""

    host: str
    """A name or an address, without a port."""
    port: int
    transport: IngressTransport = IngressTransport.MUTUAL_TLS


@attrs.frozen(kw_only=True)
class QueueLimits:
    """`resource_policy.queue` of one host. The server uses the tightest that any host states."""

    running_per_deployment_max: int = 32
    pending_per_deployment_max: int = 64
    pending_total_max: int = 256
    buffered_bytes_max: int = 64 * MIB
    admission_window_s: float = 2.0
    """Counts for the switches on this host alone."""
    request_deadline_s: float = 600.0
    stream_idle_s: float = 120.0


@attrs.frozen(kw_only=True)
class HostSources:
    """`model_sources` of one host, without its token."""

    huggingface: bool = True
    http: bool = True
    plain_http: bool = False
    allowed_hosts: tuple[str, ...] | None = None
    """None: any."""
    max_bytes: int = 500 * GIB
    root: str | None = None
    """Downloads lie in ``sources`` below it; None: below the models directory."""
    endpoint: str = "https://huggingface.co"


@attrs.frozen(kw_only=True)
class HostPublication:
    """All that a host says of itself when it connects: enough to fit a deployment to it."""

    shape: MachineShape
    """Its ``host`` is the id that the host was enrolled under."""
    profiles: tuple[Profile, ...] = ()
    labels: Mapping[str, str] = attrs.field(factory=dict)
    version: str
    """Of capyctl on the host: ``0.1.0``."""
    capabilities: tuple[str, ...] = ()
    """Sorted: ``engine_log_tail``, ``model_sources`` …"""
    queue: QueueLimits = attrs.field(factory=QueueLimits)
    explicit: bool = False
    """`lifecycle.activation: explicit`, for every deployment that may run there."""
    ingress: IngressAddress | None = None
    """None for the host inside a standalone daemon."""
    models_root: str
    """Absolute; relative model paths are inside it."""
    kv_default_bytes: int | None = None
    parked_growth_limit: str = "auto"
    max_parked_count: int | None = None
    """Most parked instances at a time; None: any number."""
    sources: HostSources = attrs.field(factory=HostSources)


@attrs.frozen(kw_only=True)
class HostRecord:
    """What is on record of one enrolled machine."""

    id: HostId
    name: str
    """Unique among those that are not revoked; what people see."""
    state: HostState = HostState.ENROLLED
    draining: bool = False
    certificates: tuple[str, ...] = ()
    """SHA-256 (64 hexadecimal digits) of the DER form of each client certificate that is good."""
    enrolled_at_ms: int = 0
    revoked_at_ms: int | None = None
    publication: HostPublication | None = None
    """The last one; None before the host has connected once."""


@attrs.frozen(kw_only=True)
class Invitation:
    """A single-use permission to enrol one machine, or to let a revoked one in again."""

    id: str
    """26-character ULID."""
    host_name: str
    secret_digest: str = attrs.field(repr=False)
    """SHA-256, hexadecimal, of the secret in the join file; the secret is not stored."""
    expires_at_ms: int
    recover: HostId | None = None
    """The revoked machine that comes back under its id; None for a new one."""
    used_at_ms: int | None = None
    host: HostId | None = None
    """Who used it."""
    key_digest: str | None = None
    """SHA-256, hexadecimal, of the public key it was used with: that machine may ask again."""


def publication_problem(found: HostPublication) -> str | None:
    """What no host of ours would publish, in words: its limits bind every model of its server."""
    queue, ingress = found.queue, found.ingress
    least = {
        "running_per_deployment_max": 1,
        "pending_per_deployment_max": 0,
        "pending_total_max": 0,
        "buffered_bytes_max": 0,
        "admission_window_s": 0.0,
        "request_deadline_s": 1.0,
        "stream_idle_s": 1.0,
    }
    low = [name for name, bound in least.items() if not getattr(queue, name) >= bound]
    if low:
        return f"queue.{low[0]} is {getattr(queue, low[0])}, and {least[low[0]]} at least"
    if found.max_parked_count is not None and found.max_parked_count < 0:
        return f"max_parked_count is {found.max_parked_count}"
    if ingress is not None and not 0 < ingress.port < 65536:
        return f"ingress.port is {ingress.port}"
    if ingress is not None and _ADDRESS.fullmatch(ingress.host) is None:
        return "ingress.host is no name or address"
    return None


def other_machine(before: MachineShape, now: MachineShape) -> str | None:
    """How a machine differs from the one that was enrolled; None when it is the same.

    Its devices and its pools of memory count, not how large they are or what their limits are.
    """
    if _parts(before) == _parts(now):
        return None
    return (
        f"the machine has {', '.join(_parts(now))}; enrolled was one with "
        f"{', '.join(_parts(before))}: put the devices back, or revoke this host and enrol the "
        "machine as a new one"
    )


def _parts(shape: MachineShape) -> list[str]:
    devices = sorted(f"{gpu.id} ({gpu.uuid})" for gpu in shape.gpus)
    pools = sorted(f"{domain.name} memory ({domain.kind.value})" for domain in shape.domains)
    return [*devices, *pools]


def compatibility(host_version: str, server_version: str) -> Compatibility:
    """What a host of ``host_version`` may do for a server of ``server_version``.

    1. The same minor version: all of it. 2. One behind: all of it, and it is told.
    3. Newer: nothing until the server is upgraded. 4. Anything else: it is drained only.
    """
    theirs, ours = _minor(host_version), _minor(server_version)
    if theirs is None or ours is None:
        return Compatibility.UPGRADE_REQUIRED
    if theirs == ours:
        return Compatibility.SUPPORTED
    if theirs > ours:
        return Compatibility.SERVER_BEHIND
    one_behind = theirs[0] == ours[0] and theirs[1] == ours[1] - 1
    return Compatibility.UPGRADE_RECOMMENDED if one_behind else Compatibility.UPGRADE_REQUIRED


def _minor(version: str) -> tuple[int, int] | None:
    parts = version.split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])

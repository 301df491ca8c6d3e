"""A machine's memory: domains, GPUs, and what was seen of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from capyctl.domain.ids import DomainName, GpuId, HostId


class MemoryKind(enum.Enum):
    UNIFIED = "unified"
    DISTINCT = "distinct"
    """Host RAM beside cards with memory of their own."""
    DEVICE = "device"


@attrs.frozen(kw_only=True)
class MemoryDomain:
    """One pool of bytes and the limits on it."""

    name: DomainName
    kind: MemoryKind
    total_bytes: int
    managed_limit_bytes: int
    """Sum of all charges may not exceed this."""
    free_reserve_bytes: int
    parked_limit_bytes: int
    """Sum of parked charges may not exceed this."""
    gpu: GpuId | None = None


@attrs.frozen(kw_only=True)
class Gpu:
    id: GpuId
    uuid: str
    name: str
    total_bytes: int
    domain: DomainName


@attrs.frozen(kw_only=True)
class MachineShape:
    """What a host has. Fixed for the life of its daemon."""

    host: HostId
    gpus: tuple[Gpu, ...]
    domains: tuple[MemoryDomain, ...]

    def domain(self, name: DomainName) -> MemoryDomain:
        return next(d for d in self.domains if d.name == name)

    @property
    def unified(self) -> bool:
        return any(d.kind is MemoryKind.UNIFIED for d in self.domains)


@attrs.frozen(kw_only=True)
class MemorySample:
    """What one look at a machine's memory showed."""

    at_s: float
    """Monotonic clock of the daemon."""
    available_bytes: Mapping[DomainName, int]
    used_by_pid: Mapping[int, int] = attrs.field(factory=dict)
    """GPU bytes per process, where the driver tells."""
    oom_kill_count: int | None = None
    """Processes of ours that the kernel has ended for want of memory, ever; None: not told."""


@attrs.frozen(kw_only=True)
class ProcessFigures:
    """What one look at some processes showed."""

    anonymous_bytes: int = 0
    """Host RAM of their own, files left out."""
    programs: frozenset[str] = frozenset()
    """What they run, by the kernel's short names."""


@attrs.frozen(kw_only=True)
class EngineSample:
    """What one look at an engine's own gauges showed."""

    at_s: float
    running: int
    waiting: int
    kv_usage_ratio: float | None = None
    running_limit_count: int | None = None
    """The most requests that it says it runs at once."""


@attrs.frozen(kw_only=True)
class Profile:
    """A published way of running an engine."""

    name: str
    family: str
    revision: int
    executable: tuple[str, ...]
    version: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = attrs.field(factory=dict)
    deep_park: bool = True
    trust_remote_code: bool = False
    extra_args_allowed: bool = True
    approved_options: tuple[str, ...] = ()
    approved_paths: tuple[str, ...] = ()
    approved_env: tuple[str, ...] = ()
    cuda_home: str | None = None
    build_fingerprint: str | None = None
    installation_drift: str = "warn"
    """``warn`` or ``refuse``."""
    source: str = "engines_file"
    """``engines_file``, ``document``, or ``simulated``."""

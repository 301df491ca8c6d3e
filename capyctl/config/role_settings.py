"""What roles run with, checked: any role, one that has a machine, one that serves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from capyctl.config.blocks import (
    InferenceListener,
    ModelSources,
    Queue,
    split_address,
)
from capyctl.config.complete import HostDefaults
from capyctl.config.sources import SourcePolicy
from capyctl.domain.devices import Profile
from capyctl.domain.hosts import QueueLimits
from capyctl.domain.units import parse_bytes


@attrs.frozen(kw_only=True)
class Setting:
    """One line of `config show`. ``source``: ``default``, ``yaml``, ``env``, ``flag``, ``set``."""

    path: str
    value: object
    source: str


@attrs.frozen(kw_only=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen(kw_only=True)
class MemoryAmount:
    """A limit on host memory: bytes, or a whole percentage of what there is."""

    size_bytes: int | None = None
    percent: int | None = None

    def of(self, total_bytes: int) -> int:
        if self.percent is not None:
            return total_bytes * self.percent // 100
        return self.size_bytes or 0


@attrs.frozen(kw_only=True)
class MemoryPolicy:
    """Limits on host memory. None: derived from the machine."""

    managed_limit: MemoryAmount | None = None
    free_reserve: MemoryAmount | None = None
    parked_limit: MemoryAmount | None = None


@attrs.frozen(kw_only=True, slots=False)
class RoleSettings:
    """What every role is told; times in seconds, sizes in bytes.

    Without slots, as its two kinds meet in the settings of a role that is both.
    """

    state_root: Path
    document_path: Path
    shutdown_drain_s: float
    settings: tuple[Setting, ...]


@attrs.frozen(kw_only=True, slots=False)
class MachineSettings(RoleSettings):
    """What a role with a machine is told of it."""

    host: str
    """The machine's name."""
    engines_path: Path
    models_root: str
    profiles: tuple[Profile, ...]
    """Of the document and `engines.yaml`."""
    sources: SourcePolicy
    trust_declared_digest: bool
    explicit: bool
    memory: MemoryPolicy
    parked_growth_limit: str
    """``auto``, ``off``, a percentage or a size, as written."""
    queue: QueueLimits
    engine_ports: tuple[int, int]
    """First and last."""
    kv_default_bytes: int | None
    """`local_engine.kv_cache`, for deployments on `local` profiles that state no memory."""
    labels: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def defaults(self) -> HostDefaults:
        """What `complete_deployment` needs of the host."""
        return HostDefaults(
            host=self.host,
            request_deadline_s=self.queue.request_deadline_s,
            explicit=self.explicit,
            labels=self.labels,
            sources=self.sources,
        )


@attrs.frozen(kw_only=True, slots=False)
class ServingSettings(RoleSettings):
    """What a role that serves inference and management is told."""

    inference: Address
    inference_key_required: bool
    allowed_origins: tuple[str, ...]
    """Whose pages may read answers in a browser; ``*`` for any, empty for none."""
    management: Address
    switching_drain_s: float
    ready_idle_s: float | None
    parked_idle_s: float | None
    stall_s: float
    timing_header: bool
    request_metrics: bool


def address_of(text: str) -> Address:
    """Of an address that a document's block has checked."""
    host, port = split_address(text)
    return Address(host=host, port=port)


def needs_key(listener: InferenceListener) -> bool:
    return listener.authentication == "api_key"


def amount_of(text: str) -> MemoryAmount | None:
    if text == "auto":
        return None
    if text.endswith("%"):
        return MemoryAmount(percent=int(text[:-1]))
    return MemoryAmount(size_bytes=parse_bytes(text))


def queue_of(queue: Queue) -> QueueLimits:
    return QueueLimits(
        running_per_deployment_max=queue.max_running_per_deployment,
        pending_per_deployment_max=queue.max_pending_per_deployment,
        pending_total_max=queue.max_pending_total,
        buffered_bytes_max=queue.max_buffered_bytes_total,
        admission_window_s=queue.admission_window,
        request_deadline_s=queue.request_deadline,
        stream_idle_s=queue.stream_idle_timeout,
    )


def sources_of(sources: ModelSources, env: Mapping[str, str]) -> SourcePolicy:
    return SourcePolicy(
        huggingface=sources.huggingface == "allowed",
        http=sources.http == "allowed",
        plain_http=sources.plain_http == "allowed",
        allowed_hosts=None if sources.allowed_hosts is None else tuple(sources.allowed_hosts),
        max_bytes=sources.max_bytes,
        root=None if sources.path is None else expanded(sources.path, env),
        endpoint=sources.huggingface_endpoint,
        token_file=sources.huggingface_token_file,
    )


def expanded(path: str, env: Mapping[str, str]) -> str:
    """``~/`` against the role's own home."""
    if not path.startswith("~/"):
        return path
    home = env.get("HOME") or os.path.expanduser("~")
    return os.path.join(home, path[2:])

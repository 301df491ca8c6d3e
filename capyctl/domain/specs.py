"""What an operator declared, and what it came to on a machine."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from capyctl.domain.checkpoints import RemoteSource
from capyctl.domain.ids import DomainName, GpuId, HostId


class Residency(enum.Enum):
    """What is kept of a model that is not awake."""

    HOST_BACKED = "host_backed"
    """The engine process, and a copy of the weights in host RAM."""
    DEEP = "deep"
    """The engine process only; a wake reads the weights from disk."""
    RESTART_ONLY = "restart_only"
    """Nothing: the engine is stopped instead of parked."""


class ModelTask(enum.Enum):
    """What a model is for, which decides the routes of its engine and how it proves an answer."""

    GENERATE = "generate"
    EMBED = "embed"
    RERANK = "rerank"
    TRANSCRIBE = "transcribe"
    """Text from audio, beside whatever else the model generates."""


class Phase(enum.Enum):
    """Which charge an instance has on its memory domains."""

    COLD = "cold"
    """From the reservation of a start until first readiness."""
    READY = "ready"
    PARKING = "parking"
    PARKED = "parked"
    WAKE = "wake"


class Strategy(enum.Enum):
    """`placement.strategy`: which of several hosts an instance goes to."""

    SPREAD = "spread"
    """Where fewest of its deployment are, then where most room is left."""
    PACK = "pack"
    """Where most of its deployment are, then where least room is left."""


Charges = Mapping[DomainName, int]
"""Bytes per memory domain. A domain that is not named is charged nothing."""


@attrs.frozen(kw_only=True)
class PhaseCharges:
    """Bytes that one instance is charged on each domain, phase by phase."""

    cold: Charges
    ready: Charges
    parking: Charges
    parked: Charges
    wake: Charges

    def of(self, phase: Phase) -> Charges:
        found: Charges = getattr(self, phase.value)
        return found


class StartupSource(enum.Enum):
    """What the charge of a start rests on."""

    DECLARED = "declared"
    DERIVED = "derived"
    """A placeholder from the size of the weights, until a start was measured."""
    MEASURED = "measured"
    WHOLE_HOST = "whole_host"
    """The placeholder is larger than the machine: all that is left of it, on an empty host."""


@attrs.frozen(kw_only=True)
class Candidate:
    """One place where an instance could run: a host, its device, and the charges there."""

    host: HostId
    gpu: GpuId | None
    """None on a machine without a GPU."""
    gpu_uuid: str | None = None
    charges: PhaseCharges
    startup: StartupSource = StartupSource.DERIVED
    declared: bool = False
    """The document states all five phases: measurements change none of them."""
    exclusive: bool = False
    """Its device may run nothing else meanwhile; what is parked does not run."""


@attrs.frozen(kw_only=True)
class Measured:
    """What the launches of one revision were seen to take on one host."""

    host: HostId
    installation: str | None = None
    """Digest of the engine's files at that time, where it is known."""
    peak: Charges = attrs.field(factory=dict)
    """Largest bytes of a start per domain."""
    residue: Charges = attrs.field(factory=dict)
    """Largest bytes kept while parked, per domain."""


@attrs.frozen(kw_only=True)
class Windows:
    """How long each step may take, in seconds."""

    request_deadline_s: float
    initialize_s: float
    wake_s: float | None
    """None for a model that never parks."""
    stop_s: float


@attrs.frozen(kw_only=True)
class EngineSettings:
    """The engine's part of a resolved deployment: enough to render its command line."""

    profile: str
    profile_revision: int
    family: str
    """``vllm``, ``sglang``, ``llamacpp`` or ``tensorfold``."""
    executable: tuple[str, ...]
    """Program and leading arguments, for example ``("/opt/llama/llama-server",)``."""
    model_path: str
    """Absolute. A directory, or a ``.gguf`` file for llama.cpp."""
    served_name: str
    task: ModelTask = ModelTask.GENERATE
    draft_path: str | None = None
    """Directory of a draft model for speculative decoding."""
    kept_bytes: int = 0
    """Weights that a park leaves where they are: a draft's, or all of a speculative SGLang's."""
    context_length: int | None = None
    concurrency: int | None = None
    """Requests the engine runs at once (slots, sequences)."""
    kv_cache_bytes: int | None = None
    request_bytes: int | None = None
    """Memory request of one instance on its main domain."""
    typed: Mapping[str, str | int | bool] = attrs.field(factory=dict)
    """Typed `engine_config` fields by their document name."""
    profile_args: tuple[str, ...] = ()
    extra_args: tuple[str, ...] = ()
    approved_paths: tuple[str, ...] = ()
    """The profile's `security.approved_paths`, for the look through links before a launch."""
    env: Mapping[str, str] = attrs.field(factory=dict)
    """Profile and deployment environment, already checked."""
    parks: bool = False
    """Render the switches that parking needs."""
    direct: bool = False
    """The executable is started as it is, as simulated engines are, not through an entry."""
    build_fingerprint: str | None = None
    """Which build of the engine the profile stands for."""
    cuda_home: str | None = None
    installation_drift: str = "warn"
    """``warn`` or ``refuse``: what a launch does once the engine's files have changed."""


@attrs.frozen(kw_only=True)
class DeploymentSpec:
    """A completed deployment document: complete, validated, not yet fitted to a machine."""

    name: str
    routes: tuple[str, ...]
    profile: str
    family: str
    instances: int
    model_path: str
    """Absolute path on the machine that runs it."""
    task: ModelTask = ModelTask.GENERATE
    draft_path: str | None = None
    """Absolute path of a draft model's directory."""
    expected_digest: str | None
    """``sha256:…`` when the document states one."""
    source: RemoteSource | None = None
    """Where the files under `model_path` are fetched from; None: they are on the machine."""
    weights_file: str | None = None
    """The GGUF file to load, relative to the model's directory, when the document names one."""
    residency: Residency | None
    """None: chosen by the machine's memory shape."""
    explicit: bool = False
    """True when only an operator's action starts the model."""
    warm: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Empty: every host."""
    selector: Mapping[str, str] = attrs.field(factory=dict)
    """Labels that a host must have, with these values."""
    strategy: Strategy = Strategy.SPREAD
    max_per_host: int | None = None
    """Most instances on one host; None: any number."""
    request_deadline_s: float
    initialize_s: float | None = None
    wake_s: float | None = None
    document: str
    """The completed document as canonical JSON text."""
    engine_part: str = "{}"
    """`engine_config`, `resources`, `devices` as canonical JSON: compared, not read, here."""

    def same_but_for_count(self, other: DeploymentSpec) -> bool:
        """Whether only the number of instances differs."""
        mine = attrs.evolve(self, instances=1, document="")
        theirs = attrs.evolve(other, instances=1, document="")
        return mine == theirs and self.engine_part == other.engine_part


@attrs.frozen(kw_only=True)
class ChosenParser:
    """A parser of the engine's, and why it is this one."""

    field: str
    """``tool_call_parser`` or ``reasoning_parser``."""
    name: str | None
    """None: none is rendered by capyctl."""
    source: str


@attrs.frozen(kw_only=True)
class ResolvedSpec:
    """A deployment fitted to the machines that may run it."""

    residency: Residency
    engine: EngineSettings
    candidates: tuple[Candidate, ...]
    windows: Windows
    weights_bytes: int | None
    provisional: bool
    """True while the figures do not rest on measured weights."""
    parsers: tuple[ChosenParser, ...] = ()
    notes: tuple[str, ...] = ()
    """What people should know of the context: a length that does not fit, a size nobody knows."""
    running_limit: int | None = None
    """Requests at once that the state cache leaves room for, where that is a limit."""
    model_path: str | None = None
    """Where the files are on the machine, absolute; None: where the specification says."""


@attrs.frozen(kw_only=True)
class HostVariant:
    """What a deployment comes to on some machines, where that is not what it is on others."""

    hosts: tuple[HostId, ...]
    settings: ResolvedSpec
    """Without candidates: those of all machines are together."""


@attrs.frozen(kw_only=True)
class HostRefusal:
    """A machine that a deployment may not run on, or cannot."""

    host: HostId
    diagnostic: str
    """Closed token: ``profile_not_published``, ``selector_mismatch``, ``checkpoint_unusable`` …"""
    detail: str

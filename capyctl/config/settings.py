"""What a standalone role runs with: its document, what was laid over it, and where each comes from.

Precedence: ``--set`` over ``CAPYCTL_SET__…`` over flag over variable over document over default.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from pydantic import BaseModel

from capyctl.config.check import check
from capyctl.config.complete import HostDefaults
from capyctl.config.named_settings import STANDALONE_SETTINGS
from capyctl.config.overrides import (
    Override,
    lay_over,
    named_overrides,
    path_overrides,
    setting_paths,
)
from capyctl.config.problems import ConfigProblem, InvalidDocument, ProblemClass
from capyctl.config.profiles import read_engines
from capyctl.config.sources import SourcePolicy
from capyctl.config.standalone import StandaloneDocument, split_address
from capyctl.config.yaml import read_text, read_yaml
from capyctl.domain.devices import Profile
from capyctl.domain.units import parse_bytes

GENERATED = """\
# Standalone role of capyctl. Every setting has a default; what is stated here wins over it.
schema_version: 1
kind: standalone
"""
_WHAT = "standalone"


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

    managed_limit: MemoryAmount | None
    free_reserve: MemoryAmount | None
    parked_limit: MemoryAmount | None


@attrs.frozen(kw_only=True)
class QueueLimits:
    """Bounds on running and waiting requests."""

    running_per_deployment_max: int
    pending_per_deployment_max: int
    pending_total_max: int
    buffered_bytes_max: int
    admission_window_s: float
    request_deadline_s: float
    stream_idle_s: float


@attrs.frozen(kw_only=True)
class StandaloneSettings:
    """Everything a standalone role is told, checked; times in seconds, sizes in bytes."""

    state_root: Path
    document_path: Path
    engines_path: Path
    host: str
    inference: Address
    inference_key_required: bool
    management: Address
    models_root: str
    profiles: tuple[Profile, ...]
    """Of `local_engine` and `engines.yaml`."""
    sources: SourcePolicy
    trust_declared_digest: bool
    explicit: bool
    memory: MemoryPolicy
    parked_growth_limit: str
    """``auto``, ``off``, a percentage or a size, as written."""
    queue: QueueLimits
    engine_ports: tuple[int, int]
    """First and last."""
    switching_drain_s: float
    shutdown_drain_s: float
    ready_idle_s: float | None
    parked_idle_s: float | None
    stall_s: float
    timing_header: bool
    request_metrics: bool
    kv_default_bytes: int | None
    """`local_engine.kv_cache`, for deployments on `local` profiles that state no memory."""
    settings: tuple[Setting, ...]

    @property
    def defaults(self) -> HostDefaults:
        """What `complete_deployment` needs of the host."""
        return HostDefaults(
            host=self.host,
            request_deadline_s=self.queue.request_deadline_s,
            explicit=self.explicit,
            sources=self.sources,
        )


def find_state_root(
    flags: Mapping[str, str], env: Mapping[str, str], config_path: Path | None
) -> Path:
    """``--state-dir``, ``CAPYCTL_STATE_DIR``, `state_dir` of an explicit document, then
    ``$XDG_STATE_HOME/capyctl``, else ``~/.local/state/capyctl``.

    Raises:
        InvalidDocument: an explicit document that cannot be read, or a relative directory.
    """
    stated: object = flags.get("--state-dir") or env.get("CAPYCTL_STATE_DIR")
    if not stated and config_path is not None:
        text = read_text(config_path, what=_WHAT)
        stated = read_yaml(text, what=_WHAT, name=str(config_path)).get("state_dir")
    if stated:
        if not isinstance(stated, str) or not stated.startswith(("/", "~/")):
            raise _invalid("state_dir", "expected an absolute path")
        return Path(_expanded(stated, env))
    base = env.get("XDG_STATE_HOME") or _expanded("~/.local/state", env)
    return Path(base) / "capyctl"


def find_engines_path(env: Mapping[str, str], config_path: Path | None) -> Path:
    """`engines.yaml` beside an explicit document, else in the user's configuration directory."""
    if config_path is not None:
        return config_path.parent / "engines.yaml"
    base = env.get("XDG_CONFIG_HOME") or _expanded("~/.config", env)
    return Path(base) / "capyctl" / "engines.yaml"


def load_standalone(
    state_root: Path,
    *,
    config_path: Path | None,
    flags: Mapping[str, str],
    env: Mapping[str, str],
    sets: Sequence[str] = (),
) -> StandaloneSettings:
    """Read, lay over, check. Nothing is written.

    Without ``config_path`` the document is ``<state root>/config/standalone.yaml``, and the
    built-in one while that is not there (`generate_document` writes it). ``flags`` are the
    named ones that were given, with their dashes; a switch has the value ``true``.

    Raises:
        InvalidDocument: an explicit document that is missing, anything that is not valid, an
            unreadable override (its source is named), sources that disagree (both are).
    """
    document_path = config_path or default_document_path(state_root)
    written = _read_document(document_path, explicit=config_path is not None)
    paths = setting_paths(StandaloneDocument)
    laid, chosen = lay_over(
        written,
        path_overrides(paths, sets=sets, env=env, what=_WHAT),
        named_overrides(STANDALONE_SETTINGS, flags=flags, env=env, what=_WHAT),
        _WHAT,
    )
    parsed = check(StandaloneDocument, laid, what=_WHAT)
    _check_folders(parsed, state_root)
    engines_path = find_engines_path(env, config_path)
    return _settings(
        parsed,
        state_root=state_root,
        document_path=document_path,
        engines_path=engines_path,
        profiles=_profiles(parsed, engines_path),
        env=env,
        settings=tuple(
            Setting(path=path, value=_at(laid, path), source=_source(path, written, chosen))
            for path in sorted(paths)
        ),
    )


def default_document_path(state_root: Path) -> Path:
    return state_root / "config" / "standalone.yaml"


def generate_document(state_root: Path) -> Path:
    """Write the built-in document, owner-only, unless one is there. Blocks on the disk."""
    path = default_document_path(state_root)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        return path
    with os.fdopen(descriptor, "w") as file:
        file.write(GENERATED)
    return path


def _read_document(path: Path, *, explicit: bool) -> Mapping[str, Any]:
    if not explicit and not path.exists():
        return read_yaml(GENERATED, what=_WHAT)
    return read_yaml(read_text(path, what=_WHAT), what=_WHAT, name=str(path))


def _check_folders(parsed: StandaloneDocument, state_root: Path) -> None:
    for path, stated, expected in (
        ("server.state_dir", parsed.server.state_dir, state_root / "server"),
        ("host.state_dir", parsed.host.state_dir, state_root / "host"),
    ):
        if stated is not None and stated != str(expected):
            raise _invalid(path, "must be the directory of that name in the state root")
    engine = parsed.host.local_engine
    if engine.sglang is not None and engine.args:
        raise _invalid("host.local_engine.args", "SGLang takes no host-fixed arguments")


def _profiles(parsed: StandaloneDocument, engines_path: Path) -> tuple[Profile, ...]:
    return (*parsed.host.local_engine.profiles(), *read_engines(engines_path))


def _settings(
    parsed: StandaloneDocument,
    *,
    state_root: Path,
    document_path: Path,
    engines_path: Path,
    profiles: tuple[Profile, ...],
    env: Mapping[str, str],
    settings: tuple[Setting, ...],
) -> StandaloneSettings:
    server, host, policy = parsed.server, parsed.host, parsed.host.resource_policy
    sources, queue, memory = host.model_sources, policy.queue, policy.memory.system
    inference, management = server.listeners.inference, server.listeners.management
    return StandaloneSettings(
        state_root=state_root,
        document_path=document_path,
        engines_path=engines_path,
        host=host.name or server.name or _hostname(),
        inference=_address(inference.bind),
        inference_key_required=inference.authentication == "api_key",
        management=_address(management.bind),
        models_root=_expanded(host.model_store.path, env),
        profiles=profiles,
        sources=SourcePolicy(
            huggingface=sources.huggingface == "allowed",
            http=sources.http == "allowed",
            plain_http=sources.plain_http == "allowed",
            allowed_hosts=None if sources.allowed_hosts is None else tuple(sources.allowed_hosts),
            max_bytes=sources.max_bytes,
            root=None if sources.path is None else _expanded(sources.path, env),
            endpoint=sources.huggingface_endpoint,
            token_file=sources.huggingface_token_file,
        ),
        trust_declared_digest=host.checkpoints.trust_declared_digest,
        explicit=host.lifecycle.activation == "explicit",
        memory=MemoryPolicy(
            managed_limit=_amount(memory.managed_limit),
            free_reserve=_amount(memory.free_reserve),
            parked_limit=_amount(memory.parked_limit),
        ),
        parked_growth_limit=policy.parked_growth_limit,
        queue=QueueLimits(
            running_per_deployment_max=queue.max_running_per_deployment,
            pending_per_deployment_max=queue.max_pending_per_deployment,
            pending_total_max=queue.max_pending_total,
            buffered_bytes_max=queue.max_buffered_bytes_total,
            admission_window_s=queue.admission_window,
            request_deadline_s=queue.request_deadline,
            stream_idle_s=queue.stream_idle_timeout,
        ),
        engine_ports=(policy.endpoint_port_range.start, policy.endpoint_port_range.end),
        switching_drain_s=server.switching.drain_timeout,
        shutdown_drain_s=parsed.shutdown.drain_timeout,
        ready_idle_s=server.lifecycle_defaults.ready_idle_timeout,
        parked_idle_s=server.lifecycle_defaults.parked_idle_timeout,
        stall_s=server.groups.stall_timeout,
        timing_header=server.observability.timing_header,
        request_metrics=server.observability.request_metrics,
        kv_default_bytes=host.local_engine.kv_cache,
        settings=settings,
    )


def _address(text: str) -> Address:
    host, port = split_address(text)
    return Address(host=host, port=port)


def _amount(text: str) -> MemoryAmount | None:
    if text == "auto":
        return None
    if text.endswith("%"):
        return MemoryAmount(percent=int(text[:-1]))
    return MemoryAmount(size_bytes=parse_bytes(text))


def _hostname() -> str:
    return socket.gethostname() or "localhost"


def _expanded(path: str, env: Mapping[str, str]) -> str:
    """``~/`` against the role's own home."""
    if not path.startswith("~/"):
        return path
    home = env.get("HOME") or os.path.expanduser("~")
    return os.path.join(home, path[2:])


def _at(laid: Mapping[str, Any], path: str) -> object:
    """As written where it was, else the default."""
    here: Any = laid
    for part in path.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return default_at(StandaloneDocument, path)
        here = here[part]
    return here


def default_at(model: type[BaseModel], path: str) -> object:
    """Default of a setting, in the words of the document."""
    *blocks, name = path.split(".")
    here: Any = model
    for block in blocks:
        here = here.model_fields[block].annotation
    field = here.model_fields[name]
    return None if field.is_required() else field.get_default(call_default_factory=True)


def _source(path: str, written: Mapping[str, Any], chosen: Mapping[str, Override]) -> str:
    if path in chosen:
        return chosen[path].source
    here: Any = written
    for part in path.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return "default"
        here = here[part]
    return "yaml"


def _invalid(path: str, detail: str) -> InvalidDocument:
    problem = ConfigProblem(kind=ProblemClass.UNSUPPORTED, path=path, detail=detail)
    return InvalidDocument(problem, _WHAT)

"""What a standalone role runs with."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from capyctl.config.named_settings import STANDALONE_SETTINGS
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
    MachineSettings,
    MemoryPolicy,
    ServingSettings,
    address_of,
    amount_of,
    expanded,
    needs_key,
    queue_of,
    sources_of,
)
from capyctl.config.standalone import StandaloneDocument

STANDALONE = Role(
    kind="standalone",
    model=StandaloneDocument,
    named=STANDALONE_SETTINGS,
    generated="""\
# Standalone role of capyctl. Every setting has a default; what is stated here wins over it.
schema_version: 1
kind: standalone
""",
)


@attrs.frozen(kw_only=True)
class StandaloneSettings(MachineSettings, ServingSettings):
    """Everything a standalone role is told: its machine and what it serves."""


def load_standalone(
    state_root: Path,
    *,
    config_path: Path | None,
    flags: Mapping[str, str],
    env: Mapping[str, str],
    sets: Sequence[str] = (),
) -> StandaloneSettings:
    """As `read_role`, of a standalone role.

    Raises:
        InvalidDocument: also a directory that cannot be chosen.
    """
    given = Given(flags=flags, env=env, sets=sets, config_path=config_path)
    laid = read_role(STANDALONE, state_root, given)
    _check(laid.parsed, state_root)
    return _settings(laid, state_root, given)


def _check(parsed: StandaloneDocument, state_root: Path) -> None:
    what = STANDALONE.kind
    check_folder("server.state_dir", parsed.server.state_dir, state_root / "server", what)
    check_folder("host.state_dir", parsed.host.state_dir, state_root / "host", what)
    check_folder("host.runtime_dir", parsed.host.runtime_dir, state_root / "runtime", what)
    engine = parsed.host.local_engine
    if engine.sglang is not None and engine.args:
        detail = "SGLang takes no host-fixed arguments"
        raise unsupported_at("host.local_engine.args", detail, what)


def _settings(laid: Laid[StandaloneDocument], state_root: Path, given: Given) -> StandaloneSettings:
    parsed, env = laid.parsed, given.env
    server, host, policy = parsed.server, parsed.host, parsed.host.resource_policy
    memory, inference = policy.memory.system, server.listeners.inference
    engines_path = find_engines_path(env, given.config_path)
    return StandaloneSettings(
        state_root=state_root,
        document_path=laid.path,
        shutdown_drain_s=parsed.shutdown.drain_timeout,
        settings=laid.settings,
        host=host.name or server.name or hostname(),
        engines_path=engines_path,
        models_root=expanded(host.model_store.path, env),
        profiles=(*host.local_engine.profiles(), *read_engines(engines_path)),
        sources=sources_of(host.model_sources, env),
        trust_declared_digest=host.checkpoints.trust_declared_digest,
        explicit=host.lifecycle.activation == "explicit",
        memory=MemoryPolicy(
            managed_limit=amount_of(memory.managed_limit),
            free_reserve=amount_of(memory.free_reserve),
            parked_limit=amount_of(memory.parked_limit),
        ),
        parked_growth_limit=policy.parked_growth_limit,
        queue=queue_of(policy.queue),
        engine_ports=(policy.endpoint_port_range.start, policy.endpoint_port_range.end),
        kv_default_bytes=host.local_engine.kv_cache,
        inference=address_of(inference.bind),
        inference_key_required=needs_key(inference),
        allowed_origins=tuple(inference.allowed_origins),
        management=address_of(server.listeners.management.bind),
        switching_drain_s=server.switching.drain_timeout,
        ready_idle_s=server.lifecycle_defaults.ready_idle_timeout,
        parked_idle_s=server.lifecycle_defaults.parked_idle_timeout,
        stall_s=server.groups.stall_timeout,
        timing_header=server.observability.timing_header,
        request_metrics=server.observability.request_metrics,
    )


def hostname() -> str:
    return socket.gethostname() or "localhost"

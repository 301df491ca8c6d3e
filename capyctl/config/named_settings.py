"""Settings of roles that have a flag and a variable of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

Values = Mapping[str, object]
"""Document values by dotted path; `attrs.NOTHING` is never one of them."""
Reader = Callable[[str, tuple[str, ...]], Values]


@attrs.frozen(kw_only=True)
class NamedSetting:
    """One flag and its variables, and the paths of the document that they set."""

    flag: str | None
    variables: tuple[str, ...]
    paths: tuple[str, ...]
    read: Reader
    empty_refused: bool = False
    """An empty variable is an error; elsewhere it counts as unset."""


def _text(text: str, paths: tuple[str, ...]) -> Values:
    return dict.fromkeys(paths, text)


def _words(text: str, paths: tuple[str, ...]) -> Values:
    return dict.fromkeys(paths, text.split())


def _flag(text: str, paths: tuple[str, ...]) -> Values:
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in known:
        raise ValueError("expected true or false")
    return dict.fromkeys(paths, known[text.lower()])


def _no_auth(text: str, paths: tuple[str, ...]) -> Values:
    if text.lower() not in ("true", "1", ""):
        raise ValueError("takes no value")
    return dict.fromkeys(paths, "none")


def _range(text: str, paths: tuple[str, ...]) -> Values:
    start, dash, end = text.partition("-")
    if not dash or not start.isdecimal() or not end.isdecimal():
        raise ValueError("expected <first>-<last>")
    return {paths[0]: int(start), paths[1]: int(end)}


def _named(
    flag: str | None,
    variables: str,
    *paths: str,
    read: Reader = _text,
    empty_refused: bool = False,
) -> NamedSetting:
    return NamedSetting(
        flag=flag,
        variables=tuple(variables.split()),
        paths=paths,
        read=read,
        empty_refused=empty_refused,
    )


_ENGINE = "local_engine"
_SOURCES = "model_sources"
_POLICY = "resource_policy"
_INFERENCE = "listeners.inference"

_SERVING: tuple[NamedSetting, ...] = (
    _named("--listen", "CAPYCTL_INFERENCE_ADDR", f"{_INFERENCE}.bind"),
    _named("--no-inference-auth", "", f"{_INFERENCE}.authentication", read=_no_auth),
    _named(None, "CAPYCTL_INFERENCE_AUTH", f"{_INFERENCE}.authentication"),
    _named("--management-listen", "CAPYCTL_MANAGEMENT_ADDR", "listeners.management.bind"),
    _named("--group-stall-timeout", "CAPYCTL_GROUP_STALL_TIMEOUT", "groups.stall_timeout"),
)
"""Of a role that serves, by the paths of its own document."""

_MACHINE: tuple[NamedSetting, ...] = (
    _named("--models-root", "CAPYCTL_MODELS_ROOT", "model_store.path"),
    _named(
        "--model-sources",
        "CAPYCTL_MODEL_SOURCES",
        f"{_SOURCES}.huggingface",
        f"{_SOURCES}.http",
    ),
    _named("--model-sources-max", "CAPYCTL_MODEL_SOURCES_MAX", f"{_SOURCES}.max_bytes"),
    _named("--model-sources-path", "CAPYCTL_MODEL_SOURCES_PATH", f"{_SOURCES}.path"),
    _named(
        "--model-sources-plain-http",
        "CAPYCTL_MODEL_SOURCES_PLAIN_HTTP",
        f"{_SOURCES}.plain_http",
    ),
    _named("--hf-endpoint", "CAPYCTL_HF_ENDPOINT HF_ENDPOINT", f"{_SOURCES}.huggingface_endpoint"),
    _named(
        "--trust-declared-digest",
        "CAPYCTL_TRUST_DECLARED_DIGEST",
        "checkpoints.trust_declared_digest",
        read=_flag,
    ),
    _named("--vllm-bin", "CAPYCTL_VLLM_BIN", f"{_ENGINE}.vllm"),
    _named("--sglang-bin", "CAPYCTL_SGLANG_BIN", f"{_ENGINE}.sglang"),
    _named("--tensorfold-bin", "CAPYCTL_TENSORFOLD_BIN", f"{_ENGINE}.tensorfold"),
    _named("--llamacpp-bin", "CAPYCTL_LLAMACPP_BIN", f"{_ENGINE}.llamacpp"),
    _named("--engine-fingerprint", "CAPYCTL_ENGINE_FINGERPRINT", f"{_ENGINE}.build_fingerprint"),
    _named("--engine-args", "CAPYCTL_ENGINE_ARGS", f"{_ENGINE}.args", read=_words),
    _named("--deep-park", "CAPYCTL_DEEP_PARK", f"{_ENGINE}.deep_park", empty_refused=True),
    _named(
        "--trust-remote-code",
        "CAPYCTL_TRUST_REMOTE_CODE",
        f"{_ENGINE}.trust_remote_code",
        read=_flag,
    ),
    _named(
        "--installation-drift",
        "CAPYCTL_INSTALLATION_DRIFT",
        f"{_ENGINE}.installation_drift",
        empty_refused=True,
    ),
    _named("--cuda-home", "CAPYCTL_CUDA_HOME", f"{_ENGINE}.cuda_home"),
    _named("--runtime-dir", "CAPYCTL_RUNTIME_DIR", "runtime_dir"),
    _named(
        "--engine-ports",
        "CAPYCTL_ENGINE_PORTS",
        f"{_POLICY}.endpoint_port_range.start",
        f"{_POLICY}.endpoint_port_range.end",
        read=_range,
        empty_refused=True,
    ),
    _named("--peer-address", "CAPYCTL_PEER_ADDRESS", f"{_POLICY}.groups.peer_address"),
    _named(
        "--rendezvous-ports",
        "CAPYCTL_RENDEZVOUS_PORTS",
        f"{_POLICY}.groups.rendezvous_port_range.start",
        f"{_POLICY}.groups.rendezvous_port_range.end",
        read=_range,
    ),
    _named(
        "--require-rdma",
        "CAPYCTL_REQUIRE_RDMA",
        f"{_POLICY}.groups.require_rdma",
        read=_flag,
    ),
)
"""Of a role with a machine, likewise."""

_CACHE = _named("--kv-cache", "CAPYCTL_KV_CACHE_BYTES", f"{_ENGINE}.kv_cache")


def _below(block: str, settings: tuple[NamedSetting, ...]) -> tuple[NamedSetting, ...]:
    return tuple(
        attrs.evolve(one, paths=tuple(f"{block}.{path}" for path in one.paths)) for one in settings
    )


STANDALONE_SETTINGS = (*_below("server", _SERVING), *_below("host", (*_MACHINE, _CACHE)))
SERVER_SETTINGS = _SERVING
HOST_SETTINGS = _MACHINE

SET_PREFIX = "CAPYCTL_SET__"
SECRET_PATHS = frozenset(
    {
        "host.model_sources.huggingface_token_file",
        "model_sources.huggingface_token_file",
        "runtime_profiles.*.env.*",
        "runtime_profiles.*.security.credential_ref",
        "runtime_profiles.*.security.admin_credential_ref",
    }
)
"""Not settable by ``--set``, which other users can see; by document or variable they are."""

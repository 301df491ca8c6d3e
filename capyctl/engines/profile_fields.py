"""The fields of one runtime profile in a document, to and from plain data. Closed and typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from capyctl.domain.devices import Profile
from capyctl.domain.units import MIB, parse_bytes
from capyctl.engines.arguments import TABLES, check_profile_args
from capyctl.engines.env_rules import check_approval, check_env

NEVER_PARK = frozenset({"tensorfold", "llamacpp"})
_ENGINE = re.compile(r"[a-z][a-z0-9_]{0,31}")
LOG_FILE_MAX_BYTES = 16 * MIB
LOG_FILES = 3


class Invalid(ValueError):
    """A document is refused. ``path`` names the setting, the message says what is wrong."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail


@attrs.frozen(kw_only=True)
class StoredProfile:
    """One profile with everything that its document may state."""

    engine: str
    revision: int = 1
    executable: tuple[str, ...]
    """Program and leading arguments."""
    build_fingerprint: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    cuda_home: str | None = None
    log_file_max_bytes: int = LOG_FILE_MAX_BYTES
    log_files_count: int = LOG_FILES
    deep_park: bool = True
    deep_park_stated: bool = False
    """False: the default, which the effective configuration says."""
    trust_remote_code: bool = False
    credential_ref: str | None = None
    admin_credential_ref: str | None = None
    extra_args_allowed: bool = True
    approved_options: tuple[str, ...] = ()
    approved_paths: tuple[str, ...] = ()
    approved_env: tuple[str, ...] = ()
    installation_drift: str = "warn"

    def to_profile(self, name: str) -> Profile:
        """The profile as it is published, under its name."""
        fingerprint = self.build_fingerprint or ""
        commit_apart = self.engine == "llamacpp"
        return Profile(
            name=name,
            family=self.engine,
            revision=self.revision,
            executable=self.executable,
            version=(fingerprint.partition("+")[0] if commit_apart else fingerprint) or "unknown",
            args=self.args,
            env=dict(self.env),
            deep_park=self.deep_park and self.engine not in NEVER_PARK,
            trust_remote_code=self.trust_remote_code,
            extra_args_allowed=self.extra_args_allowed,
            approved_options=self.approved_options,
            approved_paths=self.approved_paths,
            approved_env=self.approved_env,
            cuda_home=self.cuda_home,
            build_fingerprint=self.build_fingerprint,
            source="engines_file",
        )


_TOP = frozenset(
    {
        "engine",
        "revision",
        "executable",
        "build_fingerprint",
        "args",
        "env",
        "cuda_home",
        "log_policy",
        "security",
    }
)
_LOG = frozenset({"max_file_bytes", "retained_files"})
_SECURITY = frozenset(
    {
        "deep_park",
        "trust_remote_code",
        "credential_ref",
        "admin_credential_ref",
        "extra_args",
        "approved_options",
        "approved_paths",
        "approved_env",
        "installation_drift",
    }
)


def load_profile(path: str, found: Any) -> StoredProfile:
    """One profile of a document.

    Raises:
        Invalid: an unknown, missing or misshapen field; names it below ``path``.
    """
    top = _closed(path, found, _TOP)
    log = _closed(f"{path}.log_policy", top.get("log_policy", {}), _LOG)
    guard = _closed(f"{path}.security", top.get("security", {}), _SECURITY)
    security = f"{path}.security"
    stored = StoredProfile(
        engine=_engine(path, top),
        revision=_whole(path, top, "revision", 1),
        executable=_program(path, top),
        build_fingerprint=_optional_text(path, top, "build_fingerprint"),
        args=_texts(path, top, "args"),
        env=_env(path, top),
        cuda_home=_absolute(path, top, "cuda_home") if "cuda_home" in top else None,
        log_file_max_bytes=_size(f"{path}.log_policy", log, "max_file_bytes", LOG_FILE_MAX_BYTES),
        log_files_count=_whole(f"{path}.log_policy", log, "retained_files", LOG_FILES),
        deep_park=_one_of(security, guard, "deep_park", ("enabled", "disabled"), "enabled")
        == "enabled",
        deep_park_stated="deep_park" in guard,
        trust_remote_code=_switch(security, guard, "trust_remote_code"),
        credential_ref=_optional_text(security, guard, "credential_ref"),
        admin_credential_ref=_optional_text(security, guard, "admin_credential_ref"),
        extra_args_allowed=_one_of(security, guard, "extra_args", ("allowed", "denied"), "allowed")
        == "allowed",
        approved_options=_texts(security, guard, "approved_options"),
        approved_paths=_texts(security, guard, "approved_paths"),
        approved_env=_texts(security, guard, "approved_env"),
        installation_drift=_one_of(
            security, guard, "installation_drift", ("warn", "refuse"), "warn"
        ),
    )
    check_profile(path, stored)
    return stored


def check_profile(path: str, stored: StoredProfile) -> None:
    """Refuse contents that no launch would take.

    Raises:
        Invalid: names the field below ``path``.
    """
    try:
        check_env(stored.engine, stored.env)
        if stored.engine in TABLES:
            check_profile_args(stored.engine, stored.args)
        for pattern in stored.approved_env:
            check_approval(pattern)
    except ValueError as problem:
        # Their messages begin with the field, so that they read well in both places.
        raise Invalid(path, str(problem)) from problem
    for option in stored.approved_options:
        if not option.startswith("--"):
            raise Invalid(f"{path}.security.approved_options", "options begin with --")
    for held in stored.approved_paths:
        if not held.startswith("/"):
            raise Invalid(f"{path}.security.approved_paths", "paths must be absolute")
    if stored.deep_park and stored.deep_park_stated and stored.engine in NEVER_PARK:
        raise Invalid(f"{path}.security.deep_park", f"{stored.engine} never parks")


def dump_profile(stored: StoredProfile) -> dict[str, Any]:
    """Plain data that :func:`load_profile` reads back; defaults are left out."""
    security: dict[str, Any] = {}
    if stored.deep_park_stated:
        security["deep_park"] = "enabled" if stored.deep_park else "disabled"
    if stored.trust_remote_code:
        security["trust_remote_code"] = True
    if not stored.extra_args_allowed:
        security["extra_args"] = "denied"
    if stored.installation_drift != "warn":
        security["installation_drift"] = stored.installation_drift
    for field in ("credential_ref", "admin_credential_ref"):
        if getattr(stored, field) is not None:
            security[field] = getattr(stored, field)
    for field in ("approved_options", "approved_paths", "approved_env"):
        if getattr(stored, field):
            security[field] = list(getattr(stored, field))
    log: dict[str, Any] = {}
    if stored.log_file_max_bytes != LOG_FILE_MAX_BYTES:
        log["max_file_bytes"] = f"{stored.log_file_max_bytes}B"
    if stored.log_files_count != LOG_FILES:
        log["retained_files"] = stored.log_files_count
    dumped = {
        "engine": stored.engine,
        "revision": stored.revision,
        "executable": stored.executable[0]
        if len(stored.executable) == 1
        else list(stored.executable),
        "build_fingerprint": stored.build_fingerprint,
        "args": list(stored.args),
        "env": dict(stored.env),
        "cuda_home": stored.cuda_home,
        "log_policy": log,
        "security": security,
    }
    return {name: value for name, value in dumped.items() if value not in (None, [], {})}


def _closed(path: str, found: Any, allowed: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise Invalid(path, "must be a mapping")
    for name in found:
        if name == "launch_settings":
            raise Invalid(f"{path}.{name}", "is stated in the deployment's engine_config instead")
        if name not in allowed:
            raise Invalid(f"{path}.{name}", f"is not one of {', '.join(sorted(allowed))}")
    return found


def _one_of(
    path: str,
    found: Mapping[str, Any],
    name: str,
    allowed: tuple[str, ...],
    default: str | None = None,
) -> str:
    value = found.get(name, default)
    if value not in allowed:
        raise Invalid(f"{path}.{name}", f"must be one of {', '.join(allowed)}")
    return str(value)


def _engine(path: str, found: Mapping[str, Any]) -> str:
    """Any name: a role passes over profiles of engines that it does not know."""
    value = found.get("engine")
    if not isinstance(value, str) or _ENGINE.fullmatch(value) is None:
        raise Invalid(f"{path}.engine", "must be the name of an engine")
    return value


def _whole(path: str, found: Mapping[str, Any], name: str, default: int) -> int:
    value = found.get(name, default)
    if type(value) is not int or not 1 <= value < 2**53:
        raise Invalid(f"{path}.{name}", "must be a whole number of at least 1")
    return value


def _switch(path: str, found: Mapping[str, Any], name: str) -> bool:
    value = found.get(name, False)
    if not isinstance(value, bool):
        raise Invalid(f"{path}.{name}", "must be true or false")
    return value


def _size(path: str, found: Mapping[str, Any], name: str, default: int) -> int:
    if name not in found:
        return default
    try:
        value = parse_bytes(found[name]) if isinstance(found[name], str) else 0
    except ValueError:
        value = 0
    if value < 1:
        raise Invalid(f"{path}.{name}", "must be a size such as 16MiB")
    return value


def _optional_text(path: str, found: Mapping[str, Any], name: str) -> str | None:
    value = found.get(name)
    if value is None and name not in found:
        return None
    if not isinstance(value, str) or not value or len(value) > 4096:
        raise Invalid(f"{path}.{name}", "must be a text")
    return value


def _program(path: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    """A path, or a list of a path and leading arguments."""
    if not isinstance(found.get("executable"), list):
        return (_absolute(path, found, "executable"),)
    program = _texts(path, found, "executable")
    if not program or not program[0].startswith("/"):
        raise Invalid(f"{path}.executable", "must begin with an absolute path")
    return program


def _absolute(path: str, found: Mapping[str, Any], name: str) -> str:
    value = _optional_text(path, found, name)
    if value is None:
        raise Invalid(f"{path}.{name}", "is required")
    if not value.startswith("/"):
        raise Invalid(f"{path}.{name}", "must be an absolute path")
    return value


def _texts(path: str, found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = found.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Invalid(f"{path}.{name}", "must be a list of texts")
    return tuple(value)


def _env(path: str, found: Mapping[str, Any]) -> dict[str, str]:
    value = found.get("env", {})
    if not isinstance(value, dict):
        raise Invalid(f"{path}.env", "must be a mapping")
    for name, held in value.items():
        if not isinstance(name, str) or not isinstance(held, str):
            raise Invalid(f"{path}.env.{name}", "must be a text; quote numbers")
    return dict(value)

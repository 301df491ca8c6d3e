"""`engines.yaml` and `local_engine`: what a host publishes as ways of running an engine."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from capyctl.config.check import check
from capyctl.config.engine_config import FAMILIES
from capyctl.config.fields import (
    Closed,
    Count,
    Name,
    PositiveSize,
    SchemaVersion,
    Stated,
    bad_value,
    text_default,
)
from capyctl.config.problems import ConfigProblem, InvalidDocument, ProblemClass
from capyctl.config.yaml import read_text, read_yaml
from capyctl.contracts.engine_documents import DOCUMENT_MAX_BYTES
from capyctl.domain.devices import Profile
from capyctl.domain.profiles import LOG_FILES, NEVER_PARK, StoredProfile

RESERVED_PREFIX = "local"
PROFILES_MAX = 64
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def _absolute(value: str) -> str:
    if not value.startswith("/") or posixpath.normpath(value) != value:
        raise bad_value("expected an absolute path without . and ..")
    return value


class LogPolicy(Closed):
    max_file_bytes: PositiveSize = text_default("16MiB")
    retained_files: int = Field(default=LOG_FILES, ge=1, le=16)


class Security(Closed):
    deep_park: Literal["enabled", "disabled"] = "enabled"
    trust_remote_code: bool = False
    credential_ref: Stated | None = None
    admin_credential_ref: Stated | None = None
    extra_args: Literal["allowed", "denied"] = "allowed"
    approved_options: list[str] = Field(default_factory=list)
    approved_paths: list[str] = Field(default_factory=list)
    approved_env: list[str] = Field(default_factory=list)
    installation_drift: Literal["warn", "refuse"] = "warn"

    @field_validator("approved_options")
    @classmethod
    def _options(cls, value: list[str]) -> list[str]:
        if not all(option.startswith("--") for option in value):
            raise bad_value("options begin with --")
        return value

    @field_validator("approved_paths")
    @classmethod
    def _paths(cls, value: list[str]) -> list[str]:
        if not all(path.startswith("/") for path in value):
            raise bad_value("paths must be absolute")
        return value


class RuntimeProfile(Closed):
    engine: Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,31}$")]
    """Any name: profiles of engines that this release does not know are passed over."""
    revision: Count = 1
    executable: str | list[str]
    build_fingerprint: Stated | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cuda_home: str | None = None
    log_policy: LogPolicy = LogPolicy()
    security: Security = Security()

    @field_validator("executable")
    @classmethod
    def _program(cls, value: str | list[str]) -> str | list[str]:
        parts = [value] if isinstance(value, str) else value
        if not parts:
            raise bad_value("expected a program")
        _absolute(parts[0])
        return value

    @field_validator("cuda_home")
    @classmethod
    def _toolkit(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise bad_value("expected an absolute path")
        return value

    def stored(self) -> StoredProfile:
        """The profile as a value."""
        program = (self.executable,) if isinstance(self.executable, str) else self.executable
        security = self.security
        return StoredProfile(
            engine=self.engine,
            revision=self.revision,
            executable=tuple(program),
            build_fingerprint=self.build_fingerprint,
            args=tuple(self.args),
            env=dict(self.env),
            cuda_home=self.cuda_home,
            log_file_max_bytes=self.log_policy.max_file_bytes,
            log_files_count=self.log_policy.retained_files,
            deep_park=security.deep_park == "enabled",
            deep_park_stated="deep_park" in security.model_fields_set,
            trust_remote_code=security.trust_remote_code,
            credential_ref=security.credential_ref,
            admin_credential_ref=security.admin_credential_ref,
            extra_args_allowed=security.extra_args == "allowed",
            approved_options=tuple(security.approved_options),
            approved_paths=tuple(security.approved_paths),
            approved_env=tuple(security.approved_env),
            installation_drift=security.installation_drift,
        )

    def profile(self, name: str, *, source: str) -> Profile:
        """The profile as it is published."""
        return self.stored().to_profile(name, source=source)


class EnginesDocument(Closed):
    schema_version: SchemaVersion
    kind: Literal["engines"]
    runtime_profiles: dict[str, RuntimeProfile]

    @field_validator("runtime_profiles", mode="before")
    @classmethod
    def _settings_moved(cls, value: Any) -> Any:
        profiles = value if isinstance(value, Mapping) else {}
        if len(profiles) > PROFILES_MAX:
            raise bad_value(f"at most {PROFILES_MAX} profiles are taken")
        for name, profile in profiles.items():
            why = refused_name(str(name))
            if why is not None:
                raise bad_value(why)
            if isinstance(profile, Mapping) and "launch_settings" in profile:
                raise bad_value("launch_settings is not a setting: use engine_config")
        return value


def refused_name(name: str) -> str | None:
    """Why documents cannot use a profile name; None where they can."""
    if name.startswith(RESERVED_PREFIX):
        return "names that begin with local are the role's own"
    if _NAME.fullmatch(name) is None:
        return "names are 1 to 63 of a-z, 0-9, '.', '_' and '-', no sign first"
    return None


def read_engines(path: Path) -> tuple[Profile, ...]:
    """The profiles of an `engines.yaml`, in its order; none when the file is not there.

    Profiles of engines that this release does not know are left out; `skipped_engines` names
    them.

    Raises:
        InvalidDocument: not a valid document, or larger than 32 KiB.
    """
    return parse_engines(_document(path)) if path.exists() else ()


def skipped_engines(path: Path) -> tuple[str, ...]:
    """Names of profiles that `read_engines` leaves out. Raises as that does."""
    if not path.exists():
        return ()
    parsed = check(EnginesDocument, _document(path), what="engines")
    profiles = parsed.runtime_profiles.items()
    return tuple(name for name, profile in profiles if profile.engine not in FAMILIES)


def parse_engines(document: Mapping[str, Any]) -> tuple[Profile, ...]:
    """As `read_engines`, of a parsed document."""
    parsed = check(EnginesDocument, document, what="engines")
    return tuple(
        profile.profile(name, source="engines_file")
        for name, profile in parsed.runtime_profiles.items()
        if profile.engine in FAMILIES
    )


def _document(path: Path) -> Mapping[str, Any]:
    text = read_text(path, what="engines")
    if len(text.encode()) > DOCUMENT_MAX_BYTES:
        detail = f"has more than {DOCUMENT_MAX_BYTES} bytes"
        problem = ConfigProblem(kind=ProblemClass.IO, path=str(path), detail=detail)
        raise InvalidDocument(problem, "engines")
    return read_yaml(text, what="engines", name=str(path))


class LocalEngine(Closed):
    """Executables of the machine itself, published without `engine add`."""

    vllm: str | None = None
    sglang: str | None = None
    tensorfold: str | None = None
    llamacpp: str | None = None
    build_fingerprint: Name | None = None
    args: list[str] = Field(default_factory=list)
    kv_cache: PositiveSize | None = None
    deep_park: Literal["on", "off"] = "on"
    trust_remote_code: bool = False
    installation_drift: Literal["warn", "refuse"] = "warn"
    cuda_home: str | None = None

    @field_validator(*FAMILIES, "cuda_home")
    @classmethod
    def _path(cls, value: str | None) -> str | None:
        return None if value is None else _absolute(value)

    def profiles(self) -> tuple[Profile, ...]:
        """`local`, or `local-<family>` each when there are several."""
        stated = [family for family in FAMILIES if getattr(self, family) is not None]
        return tuple(
            Profile(
                name=RESERVED_PREFIX if len(stated) == 1 else f"{RESERVED_PREFIX}-{family}",
                family=family,
                revision=1,
                executable=(getattr(self, family),),
                version=self.build_fingerprint or "unknown",
                args=() if family == "sglang" else tuple(self.args),
                deep_park=self.deep_park == "on" and family not in NEVER_PARK,
                trust_remote_code=self.trust_remote_code,
                cuda_home=self.cuda_home,
                build_fingerprint=self.build_fingerprint,
                installation_drift=self.installation_drift,
                source="document",
            )
            for family in stated
        )

"""One runtime profile with everything that its document may state."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from capyctl.domain.devices import Profile
from capyctl.domain.units import MIB

NEVER_PARK = frozenset({"llamacpp", "tensorfold"})
"""Families that are stopped instead, whatever routes their engines have."""
LOG_FILE_MAX_BYTES = 16 * MIB
LOG_FILES = 3


@attrs.frozen(kw_only=True)
class StoredProfile:
    """A profile as it stands in a document, without its name."""

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

    def to_profile(self, name: str, *, source: str = "engines_file") -> Profile:
        """The profile as it is published, under its name."""
        fingerprint = self.build_fingerprint or ""
        # llama.cpp's fingerprint is its version, a plus, and its commit.
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
            installation_drift=self.installation_drift,
            source=source,
        )

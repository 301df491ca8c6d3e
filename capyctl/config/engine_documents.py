"""`engines.yaml` to and from profiles, for the command that keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from capyctl.config.check import check
from capyctl.config.problems import InvalidDocument
from capyctl.config.profiles import EnginesDocument, refused_name
from capyctl.config.yaml import read_yaml
from capyctl.contracts.engine_documents import Invalid
from capyctl.domain.profiles import LOG_FILE_MAX_BYTES, LOG_FILES, StoredProfile


class YamlEngineDocuments:
    """Implements `contracts.engine_documents.EngineDocuments`."""

    def read(self, text: str, *, name: str) -> Mapping[str, StoredProfile]:
        try:
            document = read_yaml(text, what="engines", name=name)
            parsed = check(EnginesDocument, document, what="engines")
        except InvalidDocument as refused:
            raise Invalid(refused.problem.path or name, refused.problem.detail) from refused
        return {key: profile.stored() for key, profile in parsed.runtime_profiles.items()}

    def write(self, profiles: Mapping[str, StoredProfile]) -> str:
        body = {
            "schema_version": 1,
            "kind": "engines",
            "runtime_profiles": {name: _plain(one) for name, one in sorted(profiles.items())},
        }
        return yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=100)

    def check_name(self, name: str) -> None:
        why = refused_name(name)
        if why is not None:
            raise Invalid("runtime_profiles", f"{name}: {why}")


def _plain(stored: StoredProfile) -> dict[str, Any]:
    """What a document states of a profile: what is not as it would be anyhow."""
    program = stored.executable
    stated = {
        "engine": stored.engine,
        "revision": stored.revision,
        "executable": program[0] if len(program) == 1 else list(program),
        "build_fingerprint": stored.build_fingerprint,
        "args": list(stored.args),
        "env": dict(stored.env),
        "cuda_home": stored.cuda_home,
        "log_policy": _log_policy(stored),
        "security": _security(stored),
    }
    return _without_empty(stated)


def _log_policy(stored: StoredProfile) -> dict[str, Any]:
    policy: dict[str, Any] = {}
    if stored.log_file_max_bytes != LOG_FILE_MAX_BYTES:
        policy["max_file_bytes"] = f"{stored.log_file_max_bytes}B"
    if stored.log_files_count != LOG_FILES:
        policy["retained_files"] = stored.log_files_count
    return policy


def _security(stored: StoredProfile) -> dict[str, Any]:
    stated: dict[str, Any] = {}
    if stored.deep_park_stated:
        stated["deep_park"] = "enabled" if stored.deep_park else "disabled"
    if stored.trust_remote_code:
        stated["trust_remote_code"] = True
    if not stored.extra_args_allowed:
        stated["extra_args"] = "denied"
    if stored.installation_drift != "warn":
        stated["installation_drift"] = stored.installation_drift
    for field in ("credential_ref", "admin_credential_ref"):
        stated[field] = getattr(stored, field)
    for field in ("approved_options", "approved_paths", "approved_env"):
        stated[field] = list(getattr(stored, field))
    return _without_empty(stated)


def _without_empty(stated: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stated.items() if value not in (None, [], {})}

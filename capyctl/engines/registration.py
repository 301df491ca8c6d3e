"""What `engine add`, `engine list` and `engine remove` do to this machine's engines document.

Blocking and free of trio: the command calls it directly. Refusals change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

import attrs

from capyctl.contracts.engine_documents import EngineDocuments, Invalid
from capyctl.domain.profiles import NEVER_PARK, StoredProfile
from capyctl.engines.engines_file import EnginesFile, edit_engines_file, read_engines_file
from capyctl.engines.fingerprint import Fingerprint, Unfingerprintable, measure_installation
from capyctl.engines.installations import (
    LLAMA_SYSTEM_CONFIG,
    EngineVersion,
    Installation,
    NotAnEngine,
    VersionFailed,
    check_version,
    deep_park_probe,
    find_cuda_home,
    is_custom,
    locate,
)
from capyctl.engines.profile_checks import check_profile
from capyctl.engines.tensorfold_toolchain import find_cuda_beside, missing_tools

RESERVED_PREFIX = "local"
"""Names that begin like this stand for the executables of a role's own document."""
KNOWN_ENGINES = frozenset({"vllm", "sglang", "tensorfold", "llamacpp"})
"""Engines that this version can run."""


class RegistrationRefused(Exception):
    """A registration command is refused and changed nothing. ``code`` decides the exit status."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@attrs.frozen(kw_only=True)
class AddedEngine:
    profile: str
    engine: str
    version: str
    custom: bool
    executable: str
    fingerprint: Fingerprint
    build_fingerprint: str
    deep_park: bool
    deep_park_probe: str
    cuda_home: str | None
    engines_file: Path
    revision: int
    """Of the document, after the write."""


@attrs.frozen(kw_only=True)
class ListedEngine:
    profile: str
    engine: str
    version: str
    custom: bool
    deep_park: bool
    executable: tuple[str, ...]
    """Program and leading arguments."""


@attrs.frozen(kw_only=True)
class RemovedEngine:
    removed: str
    engines_file: Path
    revision: int


def add_engine(
    path: str | Path,
    *,
    engines_file: Path,
    documents: EngineDocuments,
    name: str | None = None,
    deep_park: Literal["enabled", "disabled"] | None = None,
    drift: Literal["warn", "refuse"] = "warn",
    args: Sequence[str] = (),
    approved_options: Sequence[str] = (),
    approved_paths: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    approved_env: Sequence[str] = (),
    taken: Collection[str] = (),
    cuda_home: str | None = None,
    owner: tuple[int, int] | None = None,
    system_config: Path = LLAMA_SYSTEM_CONFIG,
) -> AddedEngine:
    """Look at an installation, check its version, and write its profile.

    ``taken`` are the names that the role's own document declares; ``cuda_home`` is the
    caller's `CUDA_HOME`. Blocks for up to a minute and a little, reading files.

    Raises:
        RegistrationRefused: ``engine_not_found``, ``toolchain_missing`` and so on.
    """
    installation = _located(path, system_config)
    profile = name or installation.family
    _refuse_taken(profile, taken, _read(engines_file, documents))
    version = _checked_version(installation)
    probe = deep_park_probe(installation)
    stored = StoredProfile(
        engine=installation.family,
        executable=(installation.executable,),
        build_fingerprint=version.build_fingerprint,
        args=tuple(args),
        env=dict(env or {}),
        cuda_home=_cuda_of(installation, cuda_home),
        deep_park=_parks(installation, deep_park, probe),
        deep_park_stated=deep_park is not None or probe != "supported",
        approved_options=tuple(approved_options),
        approved_paths=tuple(approved_paths),
        approved_env=tuple(approved_env),
        installation_drift=drift,
    )
    try:
        documents.check_name(profile)
        check_profile(f"runtime_profiles.{profile}", stored)
        fingerprint = measure_installation(installation.family, installation.executable)
        written = edit_engines_file(
            engines_file, lambda held: _with(held, profile, stored), documents, owner=owner
        )
    except (Invalid, Unfingerprintable) as problem:
        code = "invalid_config" if isinstance(problem, Invalid) else "engine_unsupported"
        raise RegistrationRefused(code, str(problem)) from problem
    return AddedEngine(
        profile=profile,
        engine=installation.family,
        version=version.version,
        custom=is_custom(installation.family, version.version),
        executable=installation.executable,
        fingerprint=fingerprint,
        build_fingerprint=version.build_fingerprint,
        deep_park=stored.deep_park,
        deep_park_probe=probe,
        cuda_home=stored.cuda_home,
        engines_file=engines_file,
        revision=written.revision,
    )


def list_engines(engines_file: Path, documents: EngineDocuments) -> tuple[ListedEngine, ...]:
    """The registered engines by profile name; none where there is no document.

    Raises:
        RegistrationRefused: ``invalid_config``: the document cannot be read.
    """
    held = _read(engines_file, documents)
    listed = []
    for name, stored in sorted(held.profiles.items()):
        profile = stored.to_profile(name)
        listed.append(
            ListedEngine(
                profile=name,
                engine=stored.engine,
                version=profile.version,
                custom=is_custom(stored.engine, profile.version),
                deep_park=stored.deep_park,
                executable=stored.executable,
            )
        )
    return tuple(listed)


def remove_engine(name: str, *, engines_file: Path, documents: EngineDocuments) -> RemovedEngine:
    """Take a profile out of the document. Whether it is in use is the role's to say first.

    Raises:
        RegistrationRefused: ``not_found`` or ``invalid_config``.
    """

    def without(held: EnginesFile) -> dict[str, StoredProfile]:
        if name not in held.profiles:
            known = ", ".join(sorted(held.profiles)) or "none"
            raise RegistrationRefused(
                "not_found", f"no profile {name} was added here; there are: {known}"
            )
        return {other: one for other, one in held.profiles.items() if other != name}

    try:
        written = edit_engines_file(engines_file, without, documents)
    except Invalid as problem:
        raise RegistrationRefused("invalid_config", str(problem)) from problem
    return RemovedEngine(removed=name, engines_file=engines_file, revision=written.revision)


def _located(path: str | Path, system_config: Path) -> Installation:
    try:
        installation = locate(path)
    except NotAnEngine as problem:
        code = "engine_not_found" if problem.missing else "engine_unsupported"
        raise RegistrationRefused(code, str(problem)) from problem
    if installation.family not in KNOWN_ENGINES:
        raise RegistrationRefused(
            "engine_unsupported", f"{installation.family} is not run by this version of capyctl"
        )
    if not Path(installation.executable).is_file():
        raise RegistrationRefused("engine_not_found", f"{installation.executable} does not exist")
    if installation.family == "llamacpp" and system_config.exists():
        raise RegistrationRefused(
            "engine_unsupported",
            f"{system_config} would change every llama-server on this machine; remove it first",
        )
    return installation


def _refuse_taken(name: str, taken: Collection[str], held: EnginesFile) -> None:
    if name in taken:
        raise RegistrationRefused("profile_exists", f"the role's document declares {name} itself")
    if name.startswith(RESERVED_PREFIX):
        raise RegistrationRefused(
            "profile_exists", f"{name}: names that begin with {RESERVED_PREFIX} are the role's own"
        )
    if name in held.profiles:
        raise RegistrationRefused(
            "profile_exists", f"{name} is in {held.path} already; choose another --name"
        )


def _with(held: EnginesFile, name: str, stored: StoredProfile) -> dict[str, StoredProfile]:
    """The profiles and a new one, whose revision no earlier one of its name can have had."""
    if name in held.profiles:
        raise RegistrationRefused("profile_exists", f"{name} was added by someone else just now")
    return {**held.profiles, name: attrs.evolve(stored, revision=held.revision + 1)}


def _read(engines_file: Path, documents: EngineDocuments) -> EnginesFile:
    try:
        return read_engines_file(engines_file, documents)
    except Invalid as problem:
        raise RegistrationRefused("invalid_config", str(problem)) from problem


def _checked_version(installation: Installation) -> EngineVersion:
    try:
        return check_version(installation)
    except VersionFailed as problem:
        raise RegistrationRefused("engine_version_failed", str(problem)) from problem


def _parks(installation: Installation, wanted: str | None, probe: str) -> bool:
    if wanted == "enabled" and installation.family in NEVER_PARK:
        raise RegistrationRefused("capability_missing", probe)
    return wanted == "enabled" or (wanted is None and probe == "supported")


def _cuda_of(installation: Installation, cuda_home: str | None) -> str | None:
    """The CUDA toolkit; for TensorFold it and all else that its kernels are built with."""
    if installation.family == "llamacpp":
        return None
    if installation.family != "tensorfold":
        return find_cuda_home(cuda_home)
    found = find_cuda_beside(installation, cuda_home)
    missing = missing_tools(installation, found)
    if missing:
        raise RegistrationRefused(
            "toolchain_missing",
            f"TensorFold builds its kernels when it starts and needs {', '.join(missing)}; "
            f"install them into {installation.root} or the system",
        )
    return found

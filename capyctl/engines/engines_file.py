"""`engines.yaml`: the engines that `engine add` registered. Roles read, the command writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import yaml

from capyctl.domain.devices import Profile
from capyctl.engines.profile_fields import Invalid, StoredProfile, dump_profile, load_profile

FILE_NAME = "engines.yaml"
DOCUMENT_MAX_BYTES = 32 * 1024
PROFILES_MAX = 64
NESTING_MAX = 8
RESERVED_PREFIX = "local"
"""Names that begin like this stand for the executables of a role's own document."""

_REVISION = re.compile(r"# capyctl-document-revision: ([0-9]{1,18})\s*")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@attrs.frozen(kw_only=True)
class EnginesFile:
    """The document as it stands."""

    path: Path
    revision: int
    """How often it was written; 0 while there is no file."""
    profiles: Mapping[str, StoredProfile]

    def published(self, known: Collection[str]) -> tuple[Profile, ...]:
        """The profiles of ``known`` engines as the rest of capyctl sees them, by name."""
        held = sorted(self.profiles.items())
        return tuple(one.to_profile(name) for name, one in held if one.engine in known)

    def passed_over(self, known: Collection[str]) -> tuple[str, ...]:
        """Names of profiles whose engine this version does not know: worth a warning."""
        return tuple(n for n, one in sorted(self.profiles.items()) if one.engine not in known)


def engines_file_path(config: str | None, environ: Mapping[str, str]) -> Path:
    """Beside the role's document where one is named, else in the user's configuration."""
    if config:
        return Path(os.path.abspath(config)).parent / FILE_NAME
    stated = environ.get("XDG_CONFIG_HOME") or ""
    base = Path(stated) if stated.startswith("/") else Path(environ.get("HOME", "/"), ".config")
    return base / "capyctl" / FILE_NAME


def read_engines_file(path: Path) -> EnginesFile:
    """The document at ``path``; an empty one of revision 0 where there is no file.

    Raises:
        Invalid: it cannot be read or is not what it should be; names the setting.
    """
    try:
        with path.open("rb") as source:
            data = source.read(DOCUMENT_MAX_BYTES + 1)
    except FileNotFoundError:
        return EnginesFile(path=path, revision=0, profiles={})
    except OSError as problem:
        raise Invalid(str(path), problem.strerror or "cannot be read") from problem
    if len(data) > DOCUMENT_MAX_BYTES:
        raise Invalid(str(path), f"is over {DOCUMENT_MAX_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as problem:
        raise Invalid(str(path), "is not UTF-8") from problem
    return EnginesFile(path=path, revision=_revision_of(text), profiles=_profiles_of(text, path))


def edit_engines_file(
    path: Path,
    change: Callable[[EnginesFile], Mapping[str, StoredProfile]],
    *,
    owner: tuple[int, int] | None = None,
) -> EnginesFile:
    """Replace the profiles by what ``change`` makes of them, one writer at a time.

    Whatever ``change`` raises leaves the file alone. The new file is complete on disk before
    it takes the name. ``owner`` (uid, gid) is for a file that does not exist yet.

    Raises:
        Invalid: the old or the new document is not valid, or cannot be written.
    """
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            before = read_engines_file(path)
            after = EnginesFile(
                path=path, revision=before.revision + 1, profiles=dict(change(before))
            )
            _replace(path, _text_of(after), owner)
    except OSError as problem:
        raise Invalid(str(path), problem.strerror or "cannot be written") from problem
    return after


def check_name(name: str) -> None:
    """Refuse a profile name that documents cannot use.

    Raises:
        Invalid: names `runtime_profiles`.
    """
    if name.startswith(RESERVED_PREFIX):
        raise Invalid("runtime_profiles", f"{name}: names that begin with local are the role's own")
    if _NAME.fullmatch(name) is None:
        raise Invalid(
            "runtime_profiles", "names are 1 to 63 of a-z, 0-9, '.', '_' and '-', letter first"
        )


class _StrictLoader(yaml.SafeLoader):
    """Plain data only: no key twice, no anchors, bounded nesting."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases are not taken")
        self.depth += 1
        if self.depth > NESTING_MAX:
            raise yaml.MarkedYAMLError(problem=f"is nested deeper than {NESTING_MAX}")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key_node.tag == "tag:yaml.org,2002:merge" or key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _profiles_of(text: str, path: Path) -> dict[str, StoredProfile]:
    try:
        # The loader is a SafeLoader: it makes plain data only.
        document = yaml.load(text, _StrictLoader)
    except yaml.YAMLError as problem:
        raise Invalid(str(path), _told(problem)) from problem
    if not isinstance(document, dict):
        raise Invalid(str(path), "is not a mapping")
    unknown = sorted(set(map(str, document)) - {"schema_version", "kind", "runtime_profiles"})
    if unknown:
        raise Invalid(unknown[0], "is not a setting of an engines document")
    if document.get("kind") != "engines":
        raise Invalid("kind", "must be engines")
    if document.get("schema_version") != 1 or document["schema_version"] is True:
        raise Invalid("schema_version", "must be 1")
    held = document.get("runtime_profiles", {})
    if not isinstance(held, dict) or len(held) > PROFILES_MAX:
        raise Invalid("runtime_profiles", f"must be a mapping of at most {PROFILES_MAX} profiles")
    profiles = {}
    for name, fields in held.items():
        check_name(str(name))
        profiles[str(name)] = load_profile(f"runtime_profiles.{name}", fields)
    return profiles


def _told(problem: yaml.YAMLError) -> str:
    words = getattr(problem, "problem", None) or "is not YAML"
    mark = getattr(problem, "problem_mark", None)
    return f"line {mark.line + 1}: {words}" if mark is not None else str(words)


def _revision_of(text: str) -> int:
    first = text.split("\n", 1)[0]
    found = _REVISION.fullmatch(first)
    return int(found.group(1)) if found else 0


def _text_of(document: EnginesFile) -> str:
    body = {
        "schema_version": 1,
        "kind": "engines",
        "runtime_profiles": {
            name: dump_profile(one) for name, one in sorted(document.profiles.items())
        },
    }
    dumped = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=100)
    text = f"# capyctl-document-revision: {document.revision}\n{dumped}"
    if len(text.encode()) > DOCUMENT_MAX_BYTES:
        raise Invalid(str(document.path), f"would be over {DOCUMENT_MAX_BYTES} bytes")
    return text


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: Path, text: str, owner: tuple[int, int] | None) -> None:
    """Write beside, flush, rename, flush the folder. Owner and mode of an older file are kept."""
    mode = 0o600
    with contextlib.suppress(FileNotFoundError):
        held = path.lstat()
        owner, mode = (held.st_uid, held.st_gid), held.st_mode & 0o777
    fresh, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fresh, "w", encoding="utf-8") as target:
            os.fchmod(target.fileno(), mode)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(target.fileno(), *owner)
            target.write(text)
            target.flush()
            os.fsync(target.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

"""The folder of capyctl's own entries, which run inside engines: made, repaired, verified.

A marker in it holds the digests of what was written, which tells a change by an upgrade of
capyctl from one by anybody else. Blocking; every call takes milliseconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import attrs

MARKER = ".capyctl-managed-runtime"
ENTRIES = ("sglang_entry.py", "vllm_entry.py")
FILE_BYTES_MAX = 1 << 20


class RuntimeRefused(ValueError):
    """The folder is not ours to use; the message says why and what to do."""


class RuntimeDamaged(Exception):
    """The folder does not hold what it should; says what, in a sentence."""


@attrs.frozen(kw_only=True)
class RuntimeState:
    """A folder that holds exactly what this version of capyctl puts there."""

    path: Path
    warnings: tuple[str, ...] = ()
    """What was repaired, a sentence each. Worth a line in the role's log."""


def ensure_runtime(state_dir: str | Path) -> RuntimeState:
    """Make the folder, or bring it up to date and repair it.

    Raises:
        RuntimeRefused: it is a link, another user's, or has no marker.
        OSError: it cannot be written.
    """
    folder = Path(state_dir, "runtime")
    if not os.path.lexists(folder):
        _create(folder)
        return RuntimeState(path=folder)
    _check_ours(folder)
    warnings: list[str] = []
    if stat.S_IMODE(folder.lstat().st_mode) != 0o700:
        folder.chmod(0o700)
        warnings.append(f"{folder} was open to others; its mode is 0700 again")
    written = _read_marker(folder)
    texts = entry_texts()
    for name, text in texts.items():
        why = _fault(folder / name, text)
        if why is None:
            continue
        if _digest_of(folder / name) != written.get(name):
            warnings.append(f"{folder / name} {why}; it was written again")
        _write(folder / name, text)
    if written != _digests(texts):
        _write(folder / MARKER, _marker(texts))
    strangers = sorted({entry.name for entry in folder.iterdir()} - {MARKER, *texts})
    if strangers:
        warnings.append(f"{folder} holds {', '.join(strangers)}, which nothing uses")
    return RuntimeState(path=folder, warnings=tuple(warnings))


def verify_runtime(state_dir: str | Path) -> None:
    """What must be true at every launch; repairs nothing.

    Raises:
        RuntimeDamaged: a start of the role would repair or refuse it.
    """
    folder = Path(state_dir, "runtime")
    try:
        _check_ours(folder)
        if stat.S_IMODE(folder.lstat().st_mode) != 0o700:
            raise RuntimeDamaged(f"{folder} is open to others; a restart of capyctl repairs it")
        for name, text in entry_texts().items():
            why = _fault(folder / name, text)
            if why is not None:
                raise RuntimeDamaged(f"{folder / name} {why}; a restart of capyctl repairs it")
    except (OSError, RuntimeRefused) as problem:
        raise RuntimeDamaged(str(problem)) from problem


def entry_texts() -> Mapping[str, bytes]:
    """What this version of capyctl puts into the folder, by name."""
    package = resources.files("capyctl.engines.entries")
    return {name: package.joinpath(name).read_bytes() for name in ENTRIES}


def _create(folder: Path) -> None:
    """All at once under a name of its own, so that no half of it is ever there."""
    fresh = Path(tempfile.mkdtemp(prefix=".runtime-", dir=folder.parent))
    try:
        texts = entry_texts()
        for name, text in texts.items():
            _write(fresh / name, text)
        _write(fresh / MARKER, _marker(texts))
        fresh.rename(folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _check_ours(folder: Path) -> None:
    held = folder.lstat()
    if not stat.S_ISDIR(held.st_mode) or held.st_uid != os.geteuid():
        raise RuntimeRefused(f"{folder} is a link, a file or another user's; move it away")
    marker = folder / MARKER
    if not os.path.lexists(marker) or not stat.S_ISREG(marker.lstat().st_mode):
        raise RuntimeRefused(f"{folder} was not made by capyctl (it has no {MARKER}); move it away")


def _fault(path: Path, text: bytes) -> str | None:
    """What is wrong with a file, to follow its name; None when nothing is."""
    try:
        held = path.lstat()
    except FileNotFoundError:
        return "was missing"
    if not stat.S_ISREG(held.st_mode) or held.st_uid != os.geteuid():
        return "was a link or another user's"
    if stat.S_IMODE(held.st_mode) != 0o600:
        return f"had the mode {stat.S_IMODE(held.st_mode):04o}"
    if held.st_size != len(text) or path.read_bytes() != text:
        return "had been changed"
    return None


def _digest_of(path: Path) -> str | None:
    """Of a file as it should be but for its text; None for anything else."""
    if not os.path.lexists(path):
        return None
    held = path.lstat()
    plain = stat.S_ISREG(held.st_mode) and stat.S_IMODE(held.st_mode) == 0o600
    if not plain or held.st_uid != os.geteuid() or held.st_size > FILE_BYTES_MAX:
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digests(texts: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}


def _marker(texts: Mapping[str, bytes]) -> bytes:
    return json.dumps(_digests(texts), indent=2, sort_keys=True).encode() + b"\n"


def _read_marker(folder: Path) -> dict[str, str]:
    """Digests by name; none where the marker says nothing that can be read."""
    try:
        found = json.loads((folder / MARKER).read_bytes()[:FILE_BYTES_MAX])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, text: bytes) -> None:
    """Replace whatever has that name, a link included, in one step."""
    descriptor, fresh = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise

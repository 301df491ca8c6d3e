"""Finds engines that are installed here, by reading metadata: nothing is executed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from capyctl.engines.installations import (
    LLAMA_SERVER,
    Installation,
    NotAnEngine,
    find_in_environment,
    locate,
)

ROOTS_MAX = 500
ENTRIES_MAX = 1000
_CONDA = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "~/.conda")
_CONDA_SYSTEM = ("/opt/conda", "/opt/miniconda3", "/opt/anaconda3")
_PARENTS = ("~/venvs", "~/.virtualenvs", "~/.local/share/uv/tools", "~/.local/share/pipx/venvs")


def detect_engines(environ: Mapping[str, str], extra: Iterable[str] = ()) -> list[Installation]:
    """Every installation below the usual places and ``extra`` folders, each once, by path."""
    home = Path(environ.get("HOME") or "/nonexistent")
    found: dict[str, Installation] = {}
    seen: set[str] = set()
    for root in _bounded(_environments(environ, home, extra)):
        place = os.path.realpath(root)
        if place in seen or not os.path.isdir(root):
            continue
        seen.add(place)
        for one in find_in_environment(root):
            found.setdefault(one.executable, one)
    for folder in _bounded(_llama_folders(environ, home, extra)):
        server = _llama_in(folder)
        if server is not None:
            found.setdefault(server.executable, server)
    return [found[path] for path in sorted(found)]


def _environments(environ: Mapping[str, str], home: Path, extra: Iterable[str]) -> Iterator[Path]:
    for stated in extra:
        yield Path(stated)
        yield from _children(Path(stated))
    for entry in _path(environ):
        if entry.name == "bin":
            yield entry.parent
    yield from _conda(home)
    for text in _PARENTS:
        yield from _children(_below(home, text))
    yield home / ".venv"
    yield from _children(Path("/opt"))
    for child in _children(home):
        if os.path.isfile(child / "pyvenv.cfg"):
            yield child


def _conda(home: Path) -> Iterator[Path]:
    try:
        listed = (home / ".conda/environments.txt").read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        listed = []
    yield from (Path(line) for line in listed[:ENTRIES_MAX] if line.startswith("/"))
    for text in (*_CONDA, *_CONDA_SYSTEM):
        root = _below(home, text)
        yield root
        yield from _children(root / "envs")


def _llama_folders(environ: Mapping[str, str], home: Path, extra: Iterable[str]) -> Iterator[Path]:
    for stated in extra:
        yield Path(stated)
        yield Path(stated) / "bin"
    yield from _path(environ)
    for build in _children(home / "llama.cpp"):
        if build.name.startswith("build"):
            yield build / "bin"
    for child in _children(Path("/opt")):
        yield child / "bin"
    yield Path("/usr/local/bin")


def _llama_in(folder: Path) -> Installation | None:
    path = folder / LLAMA_SERVER
    if os.path.islink(path) or not os.path.isfile(path) or not os.access(path, os.X_OK):
        return None
    try:
        return locate(path)
    except (NotAnEngine, OSError):
        return None


def _path(environ: Mapping[str, str]) -> Iterator[Path]:
    for entry in environ.get("PATH", "").split(os.pathsep):
        if entry.startswith("/"):
            yield Path(entry)


def _below(home: Path, text: str) -> Path:
    return home / text[2:] if text.startswith("~/") else Path(text)


def _children(folder: Path) -> Iterator[Path]:
    """Real folders directly in ``folder``; no link is followed."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(ENTRIES_MAX), entries, strict=False)]
    except OSError:
        return
    for name in sorted(names):
        if os.path.isdir(folder / name) and not os.path.islink(folder / name):
            yield folder / name


def _bounded(paths: Iterable[Path]) -> Iterator[Path]:
    for _, path in zip(range(ROOTS_MAX), paths, strict=False):
        yield path

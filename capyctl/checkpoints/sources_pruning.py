"""Downloads that nobody refers to any more: found by their manifests, and removed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import attrs

from capyctl.checkpoints.sources_layout import Place, bytes_below, read_manifest

KINDS = ("sources/huggingface", "sources/http")
_ENDINGS = (".manifest", ".partial", ".partial.tar")


@attrs.frozen(kw_only=True)
class Unused:
    """One source on disk."""

    key: str
    held_bytes: int
    complete: bool
    """False: its download never came to its end."""


def find_unused(root: Path, keys: Collection[str], paths: Collection[str]) -> tuple[Unused, ...]:
    """Sources below ``root`` that are none of ``keys``, and hold none of ``paths``. Blocks.

    Only what capyctl fetched is looked at: folders beside a manifest of ours, and what is
    still coming. Whatever else lies there is left alone.
    """
    held = [os.path.realpath(path) for path in paths]
    unused = []
    for key in _keys(root):
        place = Place(root, key)
        folder = os.path.realpath(place.folder)
        inside = any(path == folder or path.startswith(f"{folder}/") for path in held)
        if key in keys or inside:
            continue
        manifest = read_manifest(place.manifest)
        ours = _parts(place) if manifest is not None else (place.partial, place.archive)
        unused.append(
            Unused(
                key=key,
                held_bytes=sum(bytes_below(path) for path in ours),
                complete=manifest is not None and manifest.complete,
            )
        )
    return tuple(one for one in unused if one.complete or one.held_bytes)


def remove_source(root: Path, key: str) -> None:
    """Take a source off the disk, its manifest first. Blocks; links are not followed.

    Raises:
        OSError: something of it is left.
    """
    place = Place(root, key)
    ours = _parts(place) if read_manifest(place.manifest) is not None else None
    with contextlib.suppress(FileNotFoundError):
        place.manifest.unlink()
    for path in ours or (place.partial, place.archive):
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)


def _parts(place: Place) -> tuple[Path, ...]:
    return (place.folder, place.partial, place.archive)


def _keys(root: Path) -> Iterator[str]:
    """Keys of everything that has a manifest or is coming, each once, by name."""
    for kind in KINDS:
        try:
            names = sorted(os.listdir(root / kind))
        except (FileNotFoundError, NotADirectoryError):
            continue
        stems = {
            name.removesuffix(ending)
            for name in names
            for ending in _ENDINGS
            if name.endswith(ending)
        }
        yield from (f"{kind}/{stem}" for stem in sorted(stems))

"""Which GGUF file of a directory to load: the only model, or the first shard of the only set."""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

SHARDS_MAX = 1_024
_SHARD = re.compile(r"(?s)(.+)-([0-9]{5})-of-([0-9]{5})\.gguf")


class UnclearModel(ValueError):
    """No single GGUF model can be told from the names; the message names the candidates."""


@attrs.frozen(kw_only=True)
class GgufChoice:
    """The file to load and every file that is loaded with it (itself included)."""

    first: str
    shards: tuple[str, ...]


def shard_names(name: str) -> tuple[str, ...]:
    """Every name of the split set that ``name`` belongs to; nothing for an unsplit file.

    ``m-00002-of-00003.gguf`` gives three names. A set is taken for none when its count is
    0 or more than 1,024, or the index lies outside of it.
    """
    found = _SHARD.fullmatch(name)
    if found is None:
        return ()
    stem, index, count = found.group(1), int(found.group(2)), int(found.group(3))
    if not 1 <= index <= count <= SHARDS_MAX:
        return ()
    return tuple(f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1))


def is_projector(name: str) -> bool:
    """Vision projectors lie beside a model and are no model: ``mmproj-….gguf``."""
    return "mmproj" in name.rsplit("/", 1)[-1].lower()


def choose_gguf(names: Sequence[str], wanted: str | None) -> GgufChoice | None:
    """The model among ``names``; None where no name ends in ``.gguf``.

    Raises:
        UnclearModel: ``wanted`` is absent, a later shard or a projector; without it, there
            are several models or none; or a shard is missing.
    """
    ggufs = [name for name in names if name.endswith(".gguf")]
    if wanted is not None:
        return _check_wanted(ggufs, wanted)
    if not ggufs:
        return None
    firsts = sorted({_first_of(name) for name in ggufs if not is_projector(name)})
    if not firsts:
        raise UnclearModel(f"only projectors: {', '.join(ggufs)}")
    if len(firsts) > 1:
        raise UnclearModel(f"several GGUF models: {', '.join(firsts)}; name one of them")
    return _complete(ggufs, firsts[0])


def _check_wanted(ggufs: Sequence[str], wanted: str) -> GgufChoice:
    if wanted not in ggufs:
        raise UnclearModel(f"{wanted} is not among the GGUF files: {', '.join(ggufs) or 'none'}")
    if is_projector(wanted):
        raise UnclearModel(f"{wanted} is a projector, not a model")
    if _first_of(wanted) != wanted:
        raise UnclearModel(f"{wanted} is a later shard; name {_first_of(wanted)}")
    return _complete(ggufs, wanted)


def _first_of(name: str) -> str:
    return next(iter(shard_names(name)), name)


def _complete(ggufs: Sequence[str], first: str) -> GgufChoice:
    shards = shard_names(first) or (first,)
    missing = [name for name in shards if name not in ggufs]
    if missing:
        raise UnclearModel(f"{len(missing)} of {len(shards)} shards missing, first {missing[0]}")
    return GgufChoice(first=first, shards=shards)

"""Admission of downloads: each reserves its whole size, against the cap and the free space."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from capyctl.checkpoints.sources_layout import Place, bytes_below
from capyctl.contracts.checkpoints import Unfetchable
from capyctl.domain.units import GIB, gib

FREE_BYTES_MIN = GIB
"""What a download leaves on the file system."""


def free_bytes(path: Path) -> int:
    """What an unprivileged writer may still write there. Blocks."""
    return shutil.disk_usage(path).free


@attrs.define(eq=False, kw_only=True)
class Space:
    """The room that downloads share. Not for use from threads."""

    root: Path
    max_bytes: int
    """Cap on everything under ``<root>/sources``, what is there already included."""
    free_bytes: Callable[[Path], int] = free_bytes
    _coming: dict[str, int] = attrs.field(factory=dict, init=False)
    """Per key, bytes that are reserved and not yet on the disk."""
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def admit(self, place: Place, total_bytes: int) -> int:
        """Reserve room for a source of ``total_bytes``; how many bytes it may have at most.

        0 stands for a size that nobody knows: all the room there is may be used.

        Raises:
            Unfetchable: ``too_large`` (the cap) or ``insufficient_space``, with figures.
        """
        async with self._lock:
            self.release(place.key)
            try:
                own, used, free = await trio.to_thread.run_sync(self._look, place)
            except OSError as problem:
                detail = f"{problem.filename or self.root}: {problem.strerror}"
                raise Unfetchable("io_error", detail) from None
            coming = sum(self._coming.values())
            cap_left = self.max_bytes - (used - own) - coming
            disk_left = free + own - coming - FREE_BYTES_MIN
            wanted = total_bytes or own + 1
            if wanted > cap_left:
                raise Unfetchable(
                    "too_large",
                    f"needs {gib(wanted)}, and {gib(max(0, cap_left))} of the "
                    f"{gib(self.max_bytes)} for downloads (model_sources.max_bytes) are left",
                    terminal=True,
                )
            if wanted > disk_left:
                raise Unfetchable(
                    "insufficient_space",
                    f"needs {gib(max(0, wanted - own))} more on the disk of {self.root}, where "
                    f"{gib(max(0, free - coming))} are free and {gib(FREE_BYTES_MIN)} stay so",
                )
            granted = total_bytes or min(cap_left, disk_left)
            self._coming[place.key] = max(0, granted - own)
            return granted

    def _look(self, place: Place) -> tuple[int, int, int]:
        own = sum(map(bytes_below, (place.folder, place.partial, place.archive)))
        used = bytes_below(self.root / "sources") - bytes_below(place.manifest)
        return own, used, self.free_bytes(self.root)

    def arrived(self, key: str, left_bytes: int) -> None:
        """So much of a download is still to come."""
        if key in self._coming:
            self._coming[key] = min(self._coming[key], max(0, left_bytes))

    def release(self, key: str) -> None:
        self._coming.pop(key, None)

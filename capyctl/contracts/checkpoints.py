"""Measuring a model's files."""

from __future__ import annotations

from typing import Protocol

from capyctl.domain.checkpoints import CheckpointFacts


class Unmeasurable(Exception):
    """A model's files could not be measured.

    ``diagnostic`` is one of ``invalid_root``, ``unsafe_file``, ``too_large``, ``changed``,
    ``io_error``, ``unauthorized``, ``not_materializable``, ``host_unavailable``; ``detail``
    says it in a sentence.
    """

    def __init__(self, diagnostic: str, detail: str) -> None:
        super().__init__(f"{diagnostic}: {detail}")
        self.diagnostic = diagnostic
        self.detail = detail


class Checkpoints(Protocol):
    async def measure(self, model_path: str, *, weights_file: str | None = None) -> CheckpointFacts:
        """Digest and sizes of every file under ``model_path``. Hashing runs in threads.

        Unchanged files (device, inode, size, mtime, ctime) are not read again.

        Raises:
            Unmeasurable: see there.
        """

"""Measuring a model's files, and fetching them first where they are elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from capyctl.domain.checkpoints import CheckpointFacts, RemoteSource

Progress: TypeAlias = Callable[[int, int], None]
"""Is called with bytes done and bytes in total (0: not known) as a download goes on."""


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
    async def measure(
        self,
        model_path: str,
        *,
        weights_file: str | None = None,
        declared: str | None = None,
    ) -> CheckpointFacts:
        """Digest and sizes of every file under ``model_path``. Hashing runs in threads.

        Unchanged files (device, inode, size, mtime, ctime) are not read again. ``declared`` is
        what the document says the digest is; a host's policy may have it taken as measured.

        Raises:
            Unmeasurable: see there.
        """

    async def digest(self, model_path: str) -> str:
        """The digest as it is now: cheap while no file has changed, so fit for every launch.

        Files of up to 1 MiB are read again whatever their times say.

        Raises:
            Unmeasurable: see there.
        """


class Unfetchable(Exception):
    """A model's files could not be fetched.

    ``reason`` is a closed token: ``unauthorized``, ``not_found``, ``denied``, ``too_large``,
    ``insufficient_space``, ``checksum_mismatch``, ``unsafe_archive``, ``secret_unavailable``,
    ``unreachable``, ``interrupted``, ``io_error``; ``detail`` says it in a sentence without
    any secret. ``terminal``: waiting does not mend it. ``again``: looking again costs little,
    so it is done by itself, also after a terminal failure.
    """

    def __init__(
        self, reason: str, detail: str, *, terminal: bool = False, again: bool = True
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.terminal = terminal
        self.again = again


class Sources(Protocol):
    async def fetch(self, source: RemoteSource, progress: Progress) -> int:
        """Bytes of the source's files, once they are whole, verified and where they belong.

        Callers of one source share its download. Cancelling the last of them ends it; what
        has come so far stays, and the next call goes on from there.

        Raises:
            Unfetchable: see there.
        """

"""Where the output of launches lies, and the bounded, redacted tail of it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Container
from pathlib import Path

import attrs

from capyctl.domain.ids import DeploymentId, LaunchId
from capyctl.launch.redaction import Redactor

FILE_BYTES_MAX = 16 * 1024 * 1024
KEEP_COUNT = 2
"""Older files beside the present one: ``.log.1``, ``.log.2``."""
KEPT_S = 14 * 24 * 3600.0
"""A launch's output is kept this long after its last line."""
_PLAIN_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,128}")


@attrs.frozen
class Logs:
    """``<state dir>/logs/<deployment id>/<launch id>.log`` and its marker and older files."""

    state_dir: Path

    def path(self, deployment: DeploymentId, launch: LaunchId) -> Path:
        """Raises ValueError: an id that is no plain file name."""
        for name in (deployment, launch):
            if _PLAIN_NAME.fullmatch(name) is None:
                raise ValueError(
                    f"{name[:128]!r} cannot name a log: letters, digits and . _ - only"
                )
        return self.state_dir / "logs" / deployment / f"{launch}.log"

    def prepare(self, deployment: DeploymentId, launch: LaunchId, *, raw: bool) -> Path:
        """Make the folders (mode 0700) and, for a raw log, its marker. Blocks.

        Raises:
            OSError, ValueError: the log cannot be kept there.
        """
        path = self.path(deployment, launch)
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        os.utime(path.parent)  # so that nobody takes it for one that is left
        if raw:
            marker = os.open(raw_marker(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.close(marker)
        return path

    def prune(self, running: Container[LaunchId]) -> int:
        """Remove what launches wrote that ended over `KEPT_S` ago; how many. Blocks.

        ``running``: launches whose files stay, however quiet they are. What cannot be removed is
        left for the next time.
        """
        before_s = time.time() - KEPT_S
        removed = 0
        for log in (self.state_dir / "logs").glob("*/*.log"):
            launch = LaunchId(log.stem)
            with contextlib.suppress(OSError):
                if launch in running or log.stat().st_mtime >= before_s:
                    continue
                for file in (*log.parent.glob(f"{log.name}.*"), log):
                    file.unlink()
                removed += 1
        for folder in (self.state_dir / "logs").glob("*"):
            with contextlib.suppress(OSError):
                if folder.stat().st_mtime < before_s:
                    folder.rmdir()  # only where nothing is in it
        return removed

    def tail(
        self, deployment: DeploymentId, launch: LaunchId, *, bytes_max: int, redactor: Redactor
    ) -> tuple[str, bool] | None:
        """Whole last lines, ``bytes_max`` UTF-8 bytes at most, and whether more was left out.

        Reaches back into the file before a rotation. None when there is no log. Blocks.

        Raises:
            PermissionError: the log is a raw one, which is never shown.
        """
        path = self.path(deployment, launch)
        if raw_marker(path).exists():
            raise PermissionError(f"the log of launch {launch} is not redacted and is never shown")
        data = _last_bytes(path, bytes_max)
        if data is None:
            return None
        older = path.with_name(f"{path.name}.1")
        if len(data) <= bytes_max and older.exists():
            data = (_last_bytes(older, bytes_max - len(data)) or b"") + data
        text = redactor.redact(_whole_lines(data, bytes_max).decode(errors="replace"))
        shown = _whole_lines(text.encode(errors="replace"), bytes_max)
        left_out = len(data) > bytes_max or len(shown) < len(text.encode(errors="replace"))
        return shown.decode(errors="replace"), left_out or _has_more(path, data)


def raw_marker(log: Path) -> Path:
    """The file whose presence says that a log is not redacted."""
    return log.with_name(f"{log.name}.raw")


def _last_bytes(path: Path, count: int) -> bytes | None:
    """The last ``count + 1`` bytes: one more than wanted shows where a line begins."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - count - 1))
            return file.read(count + 1)
    except FileNotFoundError:
        return None


def _whole_lines(data: bytes, bytes_max: int) -> bytes:
    """The longest end of ``data`` within the bound that starts at a line and ends one."""
    end = data.rfind(b"\n") + 1
    start = max(0, end - bytes_max)
    if start and data[start - 1 : start] != b"\n":
        start = data.find(b"\n", start) + 1 or end
    return data[start:end]


def _has_more(path: Path, data: bytes) -> bool:
    """Whether the files hold more than was read."""
    total = 0
    for name in (path.name, *(f"{path.name}.{number + 1}" for number in range(KEEP_COUNT))):
        try:
            total += path.with_name(name).stat().st_size
        except FileNotFoundError:
            continue
    return total > len(data)

"""Says on standard error what a command waits for, since when, and until when at the latest."""

from __future__ import annotations

import shutil
import time

from capyctl.cli.surroundings import Surroundings


class Progress:
    """One line that is rewritten on a terminal; elsewhere one line for each change."""

    def __init__(self, here: Surroundings) -> None:
        self._here = here
        self._rewrites = here.is_terminal(here.err)
        self._what: str | None = None
        self._since_ms = 0
        self._is_shown = False

    def show(self, what: str, until_ms: int) -> None:
        """``what`` is being waited for, ``until_ms`` (Unix time) at the latest."""
        now_ms = self._here.wall_ms()
        is_new = what != self._what
        if is_new:
            self._what, self._since_ms = what, now_ms
        if not is_new and not self._rewrites:
            return
        times = f"since {_clock(self._since_ms)}, until {_clock(until_ms)} at the latest"
        line = f"waiting: {what} ({times})"
        if not self._rewrites:
            print(line, file=self._here.err, flush=True)
            return
        elapsed_s = (now_ms - self._since_ms) // 1000
        columns = shutil.get_terminal_size().columns
        text = f"{elapsed_s:>4} s  {line}"[: max(20, columns - 1)]
        self._here.err.write(f"\r\x1b[2K{text}")
        self._here.err.flush()
        self._is_shown = True

    def end(self) -> None:
        """Clear the line, so that what follows begins at the margin."""
        if self._is_shown:
            self._here.err.write("\r\x1b[2K")
            self._here.err.flush()
            self._is_shown = False
        self._what = None


def _clock(at_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1000))

"""What the demo shows: times, states and memory, plain where it is piped."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from capyctl.cli.surroundings import Surroundings

GIB = 1 << 30
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_COLOURS = {
    "ready": "\x1b[32m",
    "parked": "\x1b[33m",
    "starting": "\x1b[36m",
    "waking": "\x1b[36m",
    "failed": "\x1b[31m",
}
INDENT = " " * 11


class Screen:
    """Lines from several threads, one at a time. An answer may be written piece by piece."""

    def __init__(self, here: Surroundings) -> None:
        self._out = here.out
        self._is_terminal = here.is_terminal(here.out)
        self._now_s = here.monotonic_s
        self._began_s = here.monotonic_s()
        self._lock = threading.Lock()
        self._is_within_line = False

    def heading(self, text: str) -> None:
        self._line(f"\n{self._style(text, _BOLD)}")

    def line(self, text: str) -> None:
        """A line at the margin of the texts."""
        self._line(f"{INDENT}{text}")

    def happened(self, text: str) -> None:
        """A line with the time since the beginning."""
        at_s = self._now_s() - self._began_s
        self._line(f"{at_s:>7.1f} s  {text}")

    def moved(self, name: str, before: str, after: str, memory: str) -> None:
        """An instance went from one state to another."""
        arrow = f"{before} -> {after}"
        shown = f"{before} -> {self._style(after, _COLOURS.get(after, ''))}"
        padding = " " * max(1, 22 - len(arrow))
        self.happened(f"{name:<6} {shown}{padding}{memory}")

    def plain(self, text: str) -> None:
        """Lines as they are."""
        self._line(text)

    def piece(self, text: str) -> None:
        """Part of a running answer."""
        with self._lock:
            if not self._is_within_line:
                self._out.write(INDENT + "| ")
            self._is_within_line = True
            self._out.write(text.replace("\n", f"\n{INDENT}| "))
            if self._is_terminal:
                self._out.flush()

    def end_piece(self) -> None:
        with self._lock:
            self._end_line()

    def _line(self, text: str) -> None:
        with self._lock:
            self._end_line()
            self._out.write(text + "\n")
            self._out.flush()

    def _end_line(self) -> None:
        if self._is_within_line:
            self._out.write("\n")
            self._out.flush()
            self._is_within_line = False

    def _style(self, text: str, style: str) -> str:
        return f"{style}{text}{_PLAIN}" if self._is_terminal and style else text


def memory_bar(held_bytes: Mapping[str, int], awake: set[str], total_bytes: int) -> str:
    """One letter per GiB: a capital of a model that is awake, a small one of a parked one."""
    cells = ""
    width = total_bytes // GIB
    for name, count in sorted(held_bytes.items(), key=lambda one: (one[0] not in awake, one[0])):
        letter = name[0].upper() if name in awake else name[0].lower()
        cells += letter * max(1, round(count / GIB))
    used = sum(held_bytes.values()) / GIB
    return f"[{cells[:width].ljust(width, '.')}] {used:4.1f} of {width} GiB"


def shown_s(seconds: float) -> str:
    """``340 ms`` or ``2.1 s``."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"

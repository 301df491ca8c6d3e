"""What a command may touch: variables, streams, clocks and waiting. Tests hand in their own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

import attrs


def drop_output() -> None:
    """Nothing of what could not be written is flushed to the standard output at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@attrs.frozen(kw_only=True)
class Surroundings:
    """The process's own, unless said otherwise."""

    environ: Mapping[str, str] = attrs.field(factory=lambda: dict(os.environ), repr=False)
    out: TextIO = attrs.field(factory=lambda: sys.stdout)
    err: TextIO = attrs.field(factory=lambda: sys.stderr)
    input: TextIO = attrs.field(factory=lambda: sys.stdin)
    monotonic_s: Callable[[], float] = time.monotonic
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    sleep: Callable[[float], None] = time.sleep
    """Seconds."""

    def is_terminal(self, stream: TextIO) -> bool:
        return stream.isatty() and self.environ.get("TERM") != "dumb"

"""What processes hold of host RAM, and what they run, from their status files."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from capyctl.domain.devices import ProcessFigures

_KIB = 1024


def read_processes(proc: Path, pids: Collection[int]) -> ProcessFigures:
    """Anonymous memory and names of ``pids``. Blocks; processes that are gone count nothing."""
    anonymous_bytes = 0
    programs: set[str] = set()
    for pid in pids:
        try:
            text = (proc / str(pid) / "status").read_text(errors="replace")
        except OSError:
            continue
        fields = dict(line.partition(":")[::2] for line in text.splitlines())
        programs.add(fields.get("Name", "").strip())
        amount = fields.get("RssAnon", "").split()
        if amount and amount[0].isdecimal():
            anonymous_bytes += int(amount[0]) * _KIB
    return ProcessFigures(anonymous_bytes=anonymous_bytes, programs=frozenset(programs - {""}))

"""Who listens on a port of this machine, as far as the kernel tells us."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

PROC = Path("/proc")
TABLES = ("net/tcp", "net/tcp6")
LISTENING = "0A"
LINE_FIELDS_MIN = 10


def listening_inodes(port: int, *, proc: Path = PROC) -> frozenset[int]:
    """Inodes of the sockets that listen on ``port`` on any address; empty when none does."""
    found: set[int] = set()
    for table in TABLES:
        try:
            lines = (proc / table).read_text().splitlines()[1:]
        except OSError:
            continue
        found.update(_inodes(lines, port))
    return frozenset(found)


def _inodes(lines: Iterable[str], port: int) -> Iterable[int]:
    ending = f":{port:04X}"
    for line in lines:
        fields = line.split()
        # sl, local, remote, state, queues, timers, retransmits, uid, timeout, inode
        if len(fields) < LINE_FIELDS_MIN or fields[3] != LISTENING:
            continue
        if fields[1].endswith(ending):
            yield int(fields[9])


def holders(inodes: Collection[int], pids: Iterable[int], *, proc: Path = PROC) -> tuple[int, ...]:
    """Those of ``pids`` that have one of these sockets open; what is hidden is left out."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return tuple(pid for pid in pids if _holds(pid, wanted, proc))


def _holds(pid: int, wanted: set[str], proc: Path) -> bool:
    folder = proc / str(pid) / "fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(folder / name) in wanted:
                return True
        except OSError:
            continue
    return False

"""Who draws which memory of the simulated machine: one small file per process, under one lock.

The folder is shared by the engines, which draw, and the machine, which looks. A file counts
only while the very process it names lives, so that a killed engine's memory comes free.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

FILES_MAX = 4_096
_LOCK = ".lock"


@attrs.frozen(kw_only=True)
class Draw:
    """What one process holds."""

    pid: int
    start_ticks: int
    gpu: str | None
    """``gpu0`` …; None for a process without a GPU."""
    bytes: int
    """On the GPU's memory domain."""
    ram_bytes: int
    """Of host RAM, ``system``."""


class OutOfMemory(Exception):
    """A domain has less than what was to be drawn from it."""

    def __init__(
        self, domain: str, *, wanted_bytes: int, free_bytes: int, total_bytes: int
    ) -> None:
        super().__init__(f"{domain}: {wanted_bytes} bytes wanted, {free_bytes} free")
        self.domain = domain
        self.wanted_bytes = wanted_bytes
        self.free_bytes = free_bytes
        self.total_bytes = total_bytes


def start_ticks_of(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None when it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name before the last bracket may hold anything.
    state, *fields = text[text.rindex(b")") + 2 :].split()
    return None if state in (b"Z", b"X") else int(fields[18])


def read_draws(folder: Path) -> list[Draw]:
    """What every living process draws, by pid. Blocks; files of dead ones are passed over."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder))[:FILES_MAX]:
            draw = _read_draw(folder / name) if name.removesuffix(".json").isdecimal() else None
            if draw is not None and start_ticks_of(draw.pid) == draw.start_ticks:
                found.append(draw)
    return found


def _read_draw(path: Path) -> Draw | None:
    try:
        found = json.loads(path.read_bytes())
        return Draw(
            pid=int(found["pid"]),
            start_ticks=int(found["start_ticks"]),
            gpu=None if found["gpu"] is None else str(found["gpu"]),
            bytes=int(found["bytes"]),
            ram_bytes=int(found["ram_bytes"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def drawn_bytes(draws: list[Draw], *, unified: bool) -> dict[str, int]:
    """Bytes per memory domain. On a unified machine all of it comes from one pool."""
    found: dict[str, int] = {}
    for draw in draws:
        device = "unified" if unified else draw.gpu or "system"
        ram = "unified" if unified else "system"
        found[device] = found.get(device, 0) + draw.bytes
        found[ram] = found.get(ram, 0) + draw.ram_bytes
    return found


def put_draw(folder: Path, draw: Draw, *, room: Mapping[str, int], unified: bool) -> None:
    """Set what a process draws, unless a domain has too little. Blocks; one process at a time.

    Args:
        room: Bytes per domain that all processes together may draw.

    Raises:
        OutOfMemory: what the process drew before stays drawn.
    """
    with locked(folder):
        others = [other for other in read_draws(folder) if other.pid != draw.pid]
        taken = drawn_bytes(others, unified=unified)
        for domain, wanted in drawn_bytes([draw], unified=unified).items():
            total = room.get(domain, 0)
            free = total - taken.get(domain, 0)
            if wanted > free:
                raise OutOfMemory(
                    domain, wanted_bytes=wanted, free_bytes=max(0, free), total_bytes=total
                )
        write_whole(folder / f"{draw.pid}.json", json.dumps(attrs.asdict(draw)))
        _sweep(folder)


def _sweep(folder: Path) -> None:
    """Remove the files of processes that are gone."""
    for path in folder.glob("[0-9]*.json"):
        draw = _read_draw(path)
        if draw is None or start_ticks_of(draw.pid) != draw.start_ticks:
            path.unlink(missing_ok=True)


def count_launch(folder: Path, model: str) -> int:
    """One more launch of ``model`` began; which one, counted from 1. Blocks."""
    with locked(folder):
        path = folder / "launches.json"
        try:
            counts = json.loads(path.read_bytes())
        except (OSError, ValueError):
            counts = {}
        counts[model] = counts.get(model, 0) + 1
        write_whole(path, json.dumps(counts))
        return int(counts[model])


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep every other process out of the folder. The lock ends with its holder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step, so that nobody reads half of it; its owner's alone."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.touch(mode=0o600)
    fresh.write_text(text)
    os.replace(fresh, path)

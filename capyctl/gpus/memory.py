"""Host RAM: how much this daemon's part of the machine has, and how much of it is available."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import attrs

KIB = 1024
FILE_MAX_BYTES = 64 * 1024
DEPTH_MAX = 64

MEMINFO = "meminfo"
V1_UNREAD = "meminfo:cgroup_v1_unread"
V2_UNREADABLE = "meminfo:cgroup_v2_unreadable"


class MemoryUnreadable(Exception):
    """`/proc/meminfo` does not tell what it always tells."""


@attrs.frozen(kw_only=True)
class RamReading:
    total_bytes: int
    """Capacity: the machine's, or the tightest limit on our control group."""
    available_bytes: int
    source: str
    """``meminfo``, ``cgroup_v2:<cgroup>``, or why no limit could be read."""


@attrs.frozen(kw_only=True)
class _Limit:
    cgroup: str
    limit_bytes: int
    left_bytes: int


def read_ram(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> RamReading:
    """Capacity and available bytes now. Reads a handful of small files.

    A limit on any control group above us counts, with its inactive file cache as available.

    Raises:
        MemoryUnreadable: the machine's own figures are missing or misshapen.
    """
    total_bytes, available_bytes = _read_meminfo(proc / "meminfo")
    cgroup = _own_cgroup(proc / "self" / "cgroup")
    if cgroup is None:
        return _plain(total_bytes, available_bytes, V1_UNREAD)
    try:
        limits = _limits_above(cgroups, cgroup)
    except (OSError, ValueError):
        return _plain(total_bytes, available_bytes, V2_UNREADABLE)
    tight = min(limits, key=lambda one: one.limit_bytes, default=None)
    if tight is None or tight.limit_bytes >= total_bytes:
        return _plain(total_bytes, available_bytes, MEMINFO)
    left_bytes = min(one.left_bytes for one in limits)
    return RamReading(
        total_bytes=tight.limit_bytes,
        available_bytes=max(0, min(available_bytes, left_bytes)),
        source=f"cgroup_v2:{tight.cgroup}",
    )


def read_oom_kills(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Processes that the kernel has ended for want of memory: of our control group and those
    below it, else of the whole machine. None where neither is told."""
    cgroup = _own_cgroup(proc / "self" / "cgroup")
    places = [proc / "vmstat"]
    if cgroup is not None and ".." not in PurePosixPath(cgroup).parts:
        places.insert(0, cgroups / cgroup.lstrip("/") / "memory.events")
    for place in places:
        try:
            lines = _read(place).splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdigit():
                return int(value)
    return None


def _plain(total_bytes: int, available_bytes: int, source: str) -> RamReading:
    return RamReading(total_bytes=total_bytes, available_bytes=available_bytes, source=source)


def _read_meminfo(path: Path) -> tuple[int, int]:
    try:
        lines = _read(path).splitlines()
    except OSError as problem:
        raise MemoryUnreadable(f"{path}: {problem.strerror}") from problem
    found: dict[str, int] = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if name in {"MemTotal", "MemAvailable"} and len(words) == 2 and words[0].isdigit():
            found[name] = int(words[0]) * KIB
    total_bytes, available_bytes = found.get("MemTotal", 0), found.get("MemAvailable", -1)
    if total_bytes <= 0 or not 0 <= available_bytes <= total_bytes:
        raise MemoryUnreadable(f"{path} does not tell MemTotal and MemAvailable in kB")
    return total_bytes, available_bytes


def _own_cgroup(path: Path) -> str | None:
    """Our control group in the unified hierarchy; None where memory is in an older one."""
    try:
        lines = _read(path).splitlines()
    except OSError:
        return None
    unified = None
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, cgroup = rest.partition(":")
        if "memory" in controllers.split(","):
            return None
        if number == "0" and not controllers:
            unified = cgroup
    return unified


def _limits_above(root: Path, cgroup: str) -> list[_Limit]:
    """Limits of our control group and those above it, innermost first.

    Raises:
        OSError, ValueError: a group that should be there cannot be read.
    """
    inner = PurePosixPath(cgroup)
    if not inner.is_absolute() or ".." in inner.parts or len(inner.parts) > DEPTH_MAX:
        raise ValueError(f"{cgroup} lies outside of what is mounted here")
    if not (root / inner.relative_to("/")).is_dir():
        raise ValueError(f"{cgroup} is not mounted here")
    limits = []
    for group in (inner, *inner.parents):
        limit = _limit_of(root / group.relative_to("/"), str(group))
        if limit is not None:
            limits.append(limit)
    return limits


def _limit_of(folder: Path, cgroup: str) -> _Limit | None:
    try:
        text = _read(folder / "memory.max").strip()
    except FileNotFoundError:
        # The root of the hierarchy, or memory is not accounted at this level.
        return None
    if text == "max":
        return None
    usage_bytes = int(_read(folder / "memory.current"))
    cached_bytes = _inactive_file(_read(folder / "memory.stat"))
    used_bytes = max(0, usage_bytes - cached_bytes)
    return _Limit(cgroup=cgroup, limit_bytes=int(text), left_bytes=int(text) - used_bytes)


def _inactive_file(text: str) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0


def _read(path: Path) -> str:
    with path.open("rb") as source:
        return source.read(FILE_MAX_BYTES).decode(errors="replace")

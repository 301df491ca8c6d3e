"""Why a listener cannot be had: its setting, its address, who has it, and what to do."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import attrs

from capyctl.config.role_settings import Address

IN_USE = "address_in_use"
UNAVAILABLE = "address_unavailable"
DENIED = "address_denied"
_CODES = {
    errno.EADDRINUSE: IN_USE,
    errno.EADDRNOTAVAIL: UNAVAILABLE,
    errno.EAFNOSUPPORT: UNAVAILABLE,
    errno.EACCES: DENIED,
    errno.EPERM: DENIED,
}
_LISTENING = "0A"
_TABLE_LINES_MAX = 200_000
_PROCESSES_MAX = 20_000


@attrs.frozen(kw_only=True)
class Listening:
    """One listener, as the messages name it."""

    setting: str
    """Its path in the role's document."""
    flag: str | None = None


class AddressRefused(Exception):
    """The listener cannot be had. ``code`` is stable."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@contextlib.contextmanager
def naming(address: Address, listening: Listening) -> Iterator[None]:
    """The block listens on ``address``.

    Raises:
        AddressRefused: the address cannot be had.
        OSError: the system has no room for a listener; with the address.
    """
    try:
        yield
    except OSError as problem:
        code = _CODES.get(problem.errno or 0)
        if code is None:
            where = f"cannot listen on {address} ({listening.setting})"
            raise OSError(problem.errno, problem.strerror or str(problem), where) from problem
        raise AddressRefused(code, _text(address, listening, problem, code)) from problem


def _text(address: Address, listening: Listening, problem: OSError, code: str) -> str:
    named = (
        listening.setting if listening.flag is None else f"{listening.flag}, {listening.setting}"
    )
    why = os.strerror(problem.errno or 0)
    other = listening.flag or f"--set {listening.setting}=ADDRESS"
    first = f"cannot listen on {address} ({named}): {why}"
    if code == IN_USE:
        holder = holder_of(address.port)
        by = "" if holder is None else f", by {holder}"
        return f"{first}{by}. End what uses it, or choose another address with {other}"
    if code == DENIED:
        return f"{first}. Choose a port from 1024 on with {other}, or let this user bind to it"
    return f"{first}. Choose an address of this machine with {other}"


def holder_of(port: int) -> str | None:
    """Which process listens on a TCP port, where this user may see it. Blocks for a moment."""
    inodes = set(_listening_inodes(port))
    if not inodes:
        return None
    links = {f"socket:[{inode}]" for inode in inodes}
    for process in _processes():
        if links & _sockets_of(process):
            return f"process {process.name} ({_command_of(process)})"
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}", encoding="ascii") as lines:
            for _, line in zip(range(_TABLE_LINES_MAX), lines, strict=False):
                fields = line.split()
                if fields[1].endswith(wanted) and fields[3] == _LISTENING:
                    yield fields[9]


def _processes() -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir("/proc") as entries:
        for _, entry in zip(range(_PROCESSES_MAX), entries, strict=False):
            if entry.name.isdecimal():
                yield Path(entry.path)


def _sockets_of(process: Path) -> set[str]:
    found = set()
    # Processes end meanwhile, and those of others are closed to us.
    with contextlib.suppress(OSError), os.scandir(process / "fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path))
    return found


def _command_of(process: Path) -> str:
    try:
        return (process / "comm").read_text("utf-8", errors="replace").strip()
    except OSError:
        return "ended meanwhile"

"""Reads from ``/proc`` which process a pid is, and waits for and signals exactly that one."""

from __future__ import annotations

import contextlib
import functools
import os
import signal

import attrs
import trio

from capyctl.domain.identity import ProcessIdentity

STAT_BYTES_MAX = 4096


class Unreadable(Exception):
    """The kernel does not tell what this pid is: neither running nor gone is proven."""


@attrs.frozen(kw_only=True)
class Sight:
    """One process as ``/proc/<pid>/stat`` showed it at one moment."""

    identity: ProcessIdentity
    parent_pid: int
    group: int
    session: int
    ended: bool
    """It runs no more and holds no memory; only its parent's wait is missing (a zombie)."""


@functools.cache
def boot_id() -> str:
    """Which boot of the machine this is. It never changes while we run."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def look(pid: int) -> Sight | None:
    """Who has this pid now; None when nobody has.

    Raises:
        Unreadable: there is somebody, but ``/proc`` does not show them (``hidepid``).
    """
    try:
        stat = _read_stat(pid)
        boot = boot_id()
    except ProcessLookupError:
        return None
    except FileNotFoundError:
        if _exists(pid):
            raise Unreadable(f"/proc shows nothing of the running process {pid}") from None
        return None
    except OSError as error:
        raise Unreadable(f"/proc/{pid}/stat cannot be read: {error.strerror}") from error
    # The name in brackets may itself hold spaces and brackets.
    fields = stat.rpartition(b")")[2].split()
    # A leader whose main thread has left reads as a zombie while its other threads run on.
    ended = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return Sight(
        identity=ProcessIdentity(pid=pid, boot_id=boot, start_ticks=int(fields[19])),
        parent_pid=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        ended=ended,
    )


def _read_stat(pid: int) -> bytes:
    file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, STAT_BYTES_MAX)
    finally:
        os.close(file)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_gone(process: ProcessIdentity) -> bool:
    """True only when it is certain that this very process runs no more."""
    try:
        if process.boot_id != boot_id():
            return True
        sight = look(process.pid)
    except (Unreadable, OSError):
        return False
    return sight is None or sight.identity != process or sight.ended


def is_running(process: ProcessIdentity) -> bool:
    """True only when it is certain that this very process runs now."""
    try:
        sight = look(process.pid)
    except Unreadable:
        return False
    return sight is not None and sight.identity == process and not sight.ended


async def wait_gone(process: ProcessIdentity) -> None:
    """Return when this very process has ended. Cancelling leaves it alone."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        # Looked at after opening: if the pid is another's now, ours is gone. If it cannot be
        # read, the end of whoever has the pid proves ours gone as well.
        if not is_gone(process):
            await trio.lowlevel.wait_readable(pidfd)
    finally:
        trio.lowlevel.notify_closing(pidfd)
        os.close(pidfd)


def signal_process(process: ProcessIdentity, number: signal.Signals) -> None:
    """Send a signal to this very process, never to a later owner of its pid.

    Nothing is sent when it is gone, not shown by ``/proc``, or not ours to signal.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        # Proven after opening: the descriptor names this process for good.
        if is_running(process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)

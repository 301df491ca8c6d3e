"""Starts the two small programs of a launch, its latch and its log relay, and talks to them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import attrs
import trio

from capyctl.contracts.processes import Command, SpawnFailed
from capyctl.domain.identity import ProcessIdentity
from capyctl.launch.adopt import relay_label
from capyctl.launch.identity import Unreadable, look
from capyctl.launch.output import FILE_BYTES_MAX, KEEP_COUNT

LATCH_PROGRAM = Path(__file__).with_name("latch.py")
RELAY_PROGRAM = Path(__file__).with_name("log_relay.py")
ANSWER_S = 20.0
"""A small program that says nothing for this long will not."""
ANSWER_BYTES_MAX = 4096
DESCRIPTOR_MIN = 10
"""Above those that a program is given, so that none is overwritten while it is placed."""


@attrs.frozen(kw_only=True)
class Started:
    """A small program that runs, and our end of its control socket."""

    process: ProcessIdentity
    control: trio.SocketStream


@attrs.frozen(kw_only=True)
class LaunchPrograms:
    latch: Started
    relay: Started


def check_command(command: Command) -> None:
    """Raises SpawnFailed: what cannot run, said before anything is started."""
    if not command.argv:
        raise SpawnFailed("there is no command to run")
    words = (*command.argv, *command.env, *command.env.values(), command.cwd or "")
    if any("\0" in word for word in words):
        raise SpawnFailed("a NUL character stands in the command or its environment")
    if any(not name or "=" in name for name in command.env):
        raise SpawnFailed("the name of an environment variable is empty or holds '='")
    if command.cwd is not None and not os.path.isdir(command.cwd):
        raise SpawnFailed(f"{command.cwd} is not a folder, so nothing can run in it")
    program = command.argv[0]
    if "/" in program:
        place = os.path.join(command.cwd or "", program)
        if not os.path.isfile(place):
            raise SpawnFailed(f"{place} does not exist or is not a file")
        if not os.access(place, os.X_OK):
            raise SpawnFailed(f"{place} is not executable")
    elif shutil.which(program, path=command.env.get("PATH", os.defpath)) is None:
        raise SpawnFailed(f"{program} is in no folder of the PATH that the command is given")


def start_programs(log: Path) -> LaunchPrograms:
    """Start a latch and the relay that reads its output. Blocks for about two milliseconds.

    Raises:
        OSError: neither runs.
    """
    read_end, write_end = _open_pipe()
    try:
        latch = _start((str(LATCH_PROGRAM),), stdin=None, output=write_end)
        try:
            words = (str(RELAY_PROGRAM), str(log), relay_label(latch.process))
            relay = _start(words, stdin=read_end, output=None)
        except BaseException:
            latch.control.socket.close()
            os.kill(latch.process.pid, signal.SIGKILL)  # ours and not waited for: the pid holds
            os.waitpid(latch.process.pid, 0)
            raise
    finally:
        os.close(read_end)
        os.close(write_end)
    return LaunchPrograms(latch=latch, relay=relay)


def _start(words: tuple[str, ...], *, stdin: int | None, output: int | None) -> Started:
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as unless_started:
        unless_started.enter_context(ours)
        pid = _spawn(words, theirs, stdin, output)
        unless_started.pop_all()
    try:
        sight = look(pid)  # it cannot be gone: nobody has waited for it
    except Unreadable as error:
        sight, why = None, str(error)
    else:
        why = "it is not to be seen"
    if sight is None:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise OSError(f"/proc does not show our own child {pid}: {why}")
    ours.setblocking(False)
    return Started(
        process=sight.identity,
        control=trio.SocketStream(trio.socket.from_stdlib_socket(ours)),
    )


def _spawn(
    words: tuple[str, ...], theirs: socket.socket, stdin: int | None, output: int | None
) -> int:
    """The pid. ``theirs`` is closed, started or not."""
    with theirs, contextlib.ExitStack() as handed:
        control = _moved_up(os.dup(theirs.fileno()))
        handed.callback(os.close, control)
        null = _moved_up(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
        handed.callback(os.close, null)
        source, sink = null if stdin is None else stdin, null if output is None else output
        actions = [
            (os.POSIX_SPAWN_DUP2, source, 0),
            (os.POSIX_SPAWN_DUP2, sink, 1),
            (os.POSIX_SPAWN_DUP2, sink, 2),
            (os.POSIX_SPAWN_DUP2, control, 3),
        ]
        return os.posix_spawn(
            sys.executable,
            (sys.executable, "-I", "-S", *words),
            {},
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )


def _open_pipe() -> tuple[int, int]:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        read_end = _moved_up(read_end)
    except OSError:
        os.close(write_end)  # of the other one nothing is left
        raise
    try:
        return read_end, _moved_up(write_end)
    except OSError:
        os.close(read_end)
        raise


def _moved_up(descriptor: int) -> int:
    """The same, numbered so that it collides with none that a program is given."""
    if descriptor >= DESCRIPTOR_MIN:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, DESCRIPTOR_MIN)
    finally:
        os.close(descriptor)


async def tell_both(programs: LaunchPrograms, command: Command) -> None:
    """Give both programs their orders and return when both have taken them.

    Raises:
        SpawnFailed: one of them cannot do its part.
    """
    with trio.move_on_after(ANSWER_S) as answering:
        try:
            await _tell_relay(programs.relay.control, command)
            await _tell_latch(programs.latch.control, command)
            await _expect_ready(programs.relay.control, "log relay")
            await _expect_ready(programs.latch.control, "latch")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise SpawnFailed("the latch or its log relay ended before it was ready") from error
    if answering.cancelled_caught:
        raise SpawnFailed(f"the latch or its log relay was not ready within {ANSWER_S:g} s")


async def _tell_relay(control: trio.SocketStream, command: Command) -> None:
    told = {
        "secrets": command.secrets,
        "raw": command.raw_log,
        "bytes_max": FILE_BYTES_MAX,
        "keep_count": KEEP_COUNT,
    }
    await control.send_all(json.dumps(told).encode())
    await control.send_eof()


async def _tell_latch(control: trio.SocketStream, command: Command) -> None:
    order = {"argv": command.argv, "env": dict(command.env), "cwd": command.cwd}
    data = json.dumps(order).encode()
    await control.send_all(b"%d\n" % len(data) + data)


async def _expect_ready(control: trio.SocketStream, name: str) -> None:
    answer = await control.receive_some(ANSWER_BYTES_MAX)
    if answer != b"r":
        why = answer.decode(errors="replace") or "it ended"
        raise SpawnFailed(f"the {name} could not be started: {why}")


async def say_go(control: trio.SocketStream) -> None:
    """Return when the command runs in place of the latch.

    Raises:
        SpawnFailed: the latch is gone, or the command cannot be executed.
    """
    answer = b""
    try:
        await control.send_all(b"go")
        while len(answer) < ANSWER_BYTES_MAX:
            more = await control.receive_some(ANSWER_BYTES_MAX)
            if not more:
                break
            answer += more
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise SpawnFailed("the latch is gone") from error
    if not answer.startswith(b"+"):
        raise SpawnFailed("the latch is gone")
    if len(answer) > 1:
        raise SpawnFailed(answer[1:].decode(errors="replace"))

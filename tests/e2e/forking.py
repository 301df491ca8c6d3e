"""Daemons of tests without the second that their imports take: forked off one that has them.

One process per test run imports everything and does nothing else; each daemon is a fork of it
with its own output, environment and program. Real processes in every other way.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import attrs

HERE = Path(__file__).parents[2]
REQUEST_BYTES_MAX = 1 << 18
ANSWER_S_MAX = 60.0
IMPORTED = ("serve", "serve_server", "serve_host")
PREFORK = "from tests.e2e.forking import serve_forks; import sys; serve_forks(int(sys.argv[1]))"


@attrs.define(eq=False)
class Forked:
    """A forked process, with the parts of `subprocess.Popen` that tests use."""

    pid: int
    args: list[str]
    _status: int
    """Descriptor: the exit status comes here when it has ended."""
    returncode: int | None = None
    _reading: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    def __del__(self) -> None:
        os.close(self._status)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            ready, _, _ = select.select([self._status], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        with self._reading:
            if self.returncode is None:
                told = os.read(self._status, 64)
                self.returncode = int(told) if told else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Nursery:
    """The process that has imported everything, and the way to ask it for forks."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PREFORK, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=HERE,
            )
        self._ours.settimeout(ANSWER_S_MAX)
        atexit.register(self.close)

    def fork(self, program: str, argument: str, env: dict[str, str], output: BinaryIO) -> Forked:
        """Run ``program`` with one argument, as ``python -c`` would."""
        request = json.dumps({"program": program, "argument": argument, "env": env}).encode()
        assert len(request) < REQUEST_BYTES_MAX, "the environment is too large"
        status, told = os.pipe()
        handed = array.array("i", [output.fileno(), told])
        with self._asking:
            self._ours.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handed)])
            os.close(told)
            pid = int(self._ours.recv(64))
        return Forked(pid=pid, args=[program, argument], status=status)

    def close(self) -> None:
        """It ends when nobody can ask any more; what it forked goes on."""
        self._ours.close()
        self._process.wait(ANSWER_S_MAX)


_nursery: list[Nursery] = []
Started: TypeAlias = "subprocess.Popen[bytes] | Forked"


def spawn(
    program: str,
    argument: str,
    env: dict[str, str],
    output: BinaryIO,
    *,
    under: Sequence[str] = (),
) -> Started:
    """A process that runs ``program``. In tests a fork; with an interpreter of its own in
    measurements, and ``under`` another command."""
    if under or "PYTEST_VERSION" not in os.environ:
        return subprocess.Popen(
            [*under, sys.executable, "-c", program, argument],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            cwd=HERE,
        )
    if not _nursery:
        _nursery.append(Nursery())
    return _nursery[0].fork(program, argument, env, output)


# -- in the process that has imported everything -------------------------------------------------


def serve_forks(descriptor: int) -> None:
    """Fork what is asked for until nobody can ask any more."""
    for name in IMPORTED:
        __import__(f"capyctl.daemon.{name}")
    assert threading.active_count() == 1, "a fork would lose the others"
    gc.collect()
    gc.freeze()
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_writer)
    statuses: dict[int, int] = {}
    with socket.socket(fileno=descriptor) as asked:
        while True:
            ready, _, _ = select.select([asked, wake_reader], [], [])
            if wake_reader in ready:
                os.read(wake_reader, 4096)
                _reap(statuses)
            if asked in ready and not _fork_one(asked, statuses, (wake_reader, wake_writer)):
                return


def _reap(statuses: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        told = statuses.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(told)


def _fork_one(asked: socket.socket, statuses: dict[int, int], own: tuple[int, int]) -> bool:
    """False when nobody asks any more."""
    received, handed, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 2)
    if not received:
        return False
    output, told = handed
    pid = os.fork()
    if pid == 0:
        # Of the others', too: whoever waits for one of them is to see its end, not only its status.
        theirs = (asked.fileno(), told, *own, *statuses.values())
        _become(json.loads(received), output, closing=theirs)
    os.close(output)
    statuses[pid] = told
    asked.send(str(pid).encode())
    return True


def _become(request: dict[str, Any], output: int, *, closing: tuple[int, ...]) -> None:
    """In the fork: be the program that was asked for, to the end. Does not return."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for stream in (1, 2):
            os.dup2(output, stream)
        for descriptor in (output, *closing):
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = ["-c", request["argument"]]
        exec(compile(request["program"], "<program>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)

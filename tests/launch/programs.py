"""Small programs that tests of real processes run, and a way to hear from them."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from pathlib import Path

import trio

from capyctl.contracts.processes import Command
from capyctl.domain.identity import ProcessIdentity
from capyctl.domain.ids import DeploymentId, LaunchId
from capyctl.launch.identity import look
from capyctl.launch.processes import LocalProcesses

DEPLOYMENT = DeploymentId("01J0000000000000000000000D")
HEARD_S_MAX = 20.0
PRELUDE = """
import os, signal, sys, time
def tell(*words):
    fd = os.open(sys.argv[1], os.O_WRONLY)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)
def rest():
    signal.alarm(60)  # never longer than any test
    while True:
        signal.pause()
"""
REST = "tell('up', os.getpid()); rest()"
IGNORE_TERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " + REST
COUNT_TERMS = """
signal.signal(signal.SIGTERM, lambda *_: (tell('term', os.getpid()), os._exit(7)))
tell('up', os.getpid()); rest()
"""
LEADER_LEAVES = """
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell('child', os.getpid()); rest()
os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
os._exit(3)
"""
DAEMONISES = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open('/dev/null', os.O_RDWR)
        if sys.argv[3] == 'quiet':
            for fd in (0, 1, 2): os.dup2(null, fd)
        tell('daemon', os.getpid())
        os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
        tell('loose', os.getpid()); rest()
    os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
    os._exit(0)
os.wait()
tell('up', os.getpid()); rest()
"""
"""A grandchild leaves session and group, and loses its parent once it may go on."""


class Ear:
    """A named pipe on which programs tell what they did."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # Opened for both: it never reads as ended between two writers.
        self._stream = trio.lowlevel.FdStream(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        self._heard = b""

    async def line(self) -> list[str]:
        """The next line, in words. Bounded in time."""
        with trio.fail_after(HEARD_S_MAX):
            while b"\n" not in self._heard:
                self._heard += await self._stream.receive_some(4096)
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode().split()

    async def pid(self, word: str) -> int:
        said, pid = await self.line()
        assert said == word
        return int(pid)

    async def aclose(self) -> None:
        await self._stream.aclose()


class Bench:
    """`LocalProcesses` on a folder of its own; whatever was started ends with it."""

    def __init__(self, folder: Path) -> None:
        self.state_dir = folder / "state"
        self.processes = LocalProcesses(self.state_dir)
        self.ear = Ear(folder / "ear")
        self.gate = folder / "gate"
        os.mkfifo(self.gate)
        self._gate = os.open(self.gate, os.O_RDWR)
        self._numbers = itertools.count()
        self._begun: list[ProcessIdentity] = []

    def command(self, *argv: str, env: dict[str, str] | None = None, **rest) -> Command:
        launch = LaunchId(f"01J000000000000000000000{next(self._numbers):02}")
        return Command(
            launch=launch, deployment=DEPLOYMENT, argv=argv, env={} if env is None else env, **rest
        )

    def program(self, body: str, *args: str, **rest) -> Command:
        words = (sys.executable, "-I", "-S", "-c", PRELUDE + body, str(self.ear.path))
        return self.command(*words, str(self.gate), *args, **rest)

    async def spawn(self, command: Command) -> ProcessIdentity:
        process = await self.processes.spawn(command)
        self._begun.append(process)
        return process

    def adopted(self, process: ProcessIdentity) -> None:
        """Ends with this bench although another process began it."""
        self._begun.append(process)

    async def run(self, command: Command) -> ProcessIdentity:
        process = await self.spawn(command)
        await self.processes.open_latch(command.launch)
        return process

    def open_gate(self) -> None:
        """Let everything go on that waits to read the gate, now or later."""
        os.write(self._gate, b"....")

    async def tail(self, command: Command, bytes_max: int = 65536) -> str:
        found = await self.processes.log_tail(DEPLOYMENT, command.launch, bytes_max=bytes_max)
        assert found is not None
        return found[0]

    def log(self, command: Command) -> Path:
        return self.state_dir / "logs" / DEPLOYMENT / f"{command.launch}.log"

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            for process in self._begun:
                await self.processes.end(process, grace_s=0, proof_s=5)
            await self.processes.aclose()
            await self.ear.aclose()
            os.close(self._gate)


def identify(pid: int) -> ProcessIdentity:
    sight = look(pid)
    assert sight is not None
    return sight.identity


async def until(condition, *, within_s: float = 10.0) -> None:
    """For effects that nothing announces."""
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


def descriptors() -> dict[int, str]:
    """What this process has open now."""
    open_now = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            open_now[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return {number: what for number, what in open_now.items() if not what.endswith("/fd")}

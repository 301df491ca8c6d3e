"""Processes of this machine: spawned behind a latch, watched and ended, adopted after a restart."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
import trio

from capyctl.contracts.processes import Command, SpawnFailed
from capyctl.domain.identity import ExitStatus, ProcessIdentity
from capyctl.domain.ids import DeploymentId, LaunchId
from capyctl.launch.adopt import adopt
from capyctl.launch.ending import end_group
from capyctl.launch.identity import is_gone, wait_gone
from capyctl.launch.kin import Kin, group_pids, running_pids
from capyctl.launch.listeners import holders, listening_inodes
from capyctl.launch.output import Logs
from capyctl.launch.redaction import Redactor
from capyctl.launch.spawning import (
    RELAY_PROGRAM,
    LaunchPrograms,
    check_command,
    say_go,
    start_programs,
    tell_both,
)
from capyctl.launch.strays import find_launches

RECORD_EVERY_S = 5.0
"""How often the members of a watched launch are taken in: a whole look at ``/proc`` each."""
LAST_WORDS_S = 0.25
"""How long an exit may wait for the last lines to reach the log."""
PRUNE_EVERY_S = 24 * 3600.0
"""Between two looks for logs that are kept no longer."""
REAP_POLL_S = 0.001
REMEMBERED_COUNT_MAX = 1000
"""Ended launches whose exit code is still known, and logs whose secrets are."""


@attrs.define
class _Launch:
    """A process known to this object; ``kin`` is filled in as it lives."""

    kin: Kin
    is_child: bool
    ended: bool = False
    exit_code: int | None = None


class LocalProcesses:
    """`contracts.processes.Processes` on Linux.

    Children are waited for with their exit code, and any other process is watched by its
    identity alone. Nothing here ends with this object: unopened latches exit when it is
    closed or its daemon dies, engines and their log relays run on.
    """

    def __init__(self, state_dir: Path) -> None:
        self._logs = Logs(state_dir)
        self._prune_s = 0.0
        self._latches: dict[LaunchId, LaunchPrograms] = {}
        self._launches: dict[ProcessIdentity, _Launch] = {}
        self._relays: dict[int, ProcessIdentity] = {}
        self._secrets: dict[LaunchId, tuple[str, ...]] = {}

    async def spawn(self, command: Command) -> ProcessIdentity:
        """See the contract. Cancelling leaves nothing running."""
        self._reap_relays()
        if command.launch in self._latches:
            raise SpawnFailed(f"launch {command.launch} already has a latch")
        programs = await trio.to_thread.run_sync(self._start, command)
        latch, relay = programs.latch.process, programs.relay.process
        self._relays[relay.pid] = relay
        self._launches[latch] = _Launch(kin=Kin(latch, relay=relay), is_child=True)
        try:
            await tell_both(programs, command)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._drop(programs)
                self._launches.pop(latch, None)
            raise
        await programs.relay.control.aclose()
        self._latches[command.launch] = programs
        self._secrets[command.launch] = command.secrets
        self._forget_oldest()
        return latch

    def _start(self, command: Command) -> LaunchPrograms:
        check_command(command)
        self._prune_logs()
        try:
            log = self._logs.prepare(command.deployment, command.launch, raw=command.raw_log)
            return start_programs(log)
        except (OSError, ValueError) as error:
            raise SpawnFailed(f"the latch or its log could not be started: {error}") from error

    def _prune_logs(self) -> None:
        """Once a day, at a launch: whoever launches nothing writes no logs either."""
        now_s = time.monotonic()
        if now_s < self._prune_s:
            return
        self._prune_s = now_s + PRUNE_EVERY_S
        self._logs.prune(find_launches(self._logs.state_dir).keys())

    async def open_latch(self, launch: LaunchId) -> None:
        """See the contract; SpawnFailed also when the command cannot be executed.

        Cancelling leaves open whether the command runs: end it by its identity.
        """
        programs = self._latches.pop(launch, None)
        if programs is None:
            raise SpawnFailed(f"launch {launch} has no latch")
        try:
            await say_go(programs.latch.control)
        except SpawnFailed:
            with trio.CancelScope(shield=True):
                await self._drop(programs)
            raise
        finally:
            programs.latch.control.socket.close()

    async def discard(self, launch: LaunchId) -> None:
        programs = self._latches.pop(launch, None)
        if programs is not None:
            with trio.CancelScope(shield=True):
                await self._drop(programs)

    async def aclose(self) -> None:
        """Discard every latch that was not opened. Engines run on."""
        for launch in tuple(self._latches):
            await self.discard(launch)
        self._reap_relays()

    async def _drop(self, programs: LaunchPrograms) -> None:
        """Kill a latch that is our child and was not waited for, so that its pid is its own."""
        programs.latch.control.socket.close()
        programs.relay.control.socket.close()
        latch = programs.latch.process
        launch = self._launches.get(latch)
        if launch is None:
            return  # it ended so long ago that it was forgotten
        if not launch.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(latch.pid, signal.SIGKILL)
            await wait_gone(latch)
            await self._reap(launch)
        await self._last_words(launch)

    async def wait_exit(self, process: ProcessIdentity) -> ExitStatus:
        launch = await self._known(process)
        await launch.kin.record()
        while not launch.ended:
            with trio.move_on_after(RECORD_EVERY_S):
                await wait_gone(process)
                # The zombie still holds its group's number: whoever is in it is ours.
                with trio.CancelScope(shield=True):
                    await launch.kin.record()
                    await self._reap(launch)
                break
            await launch.kin.record()
        await self._last_words(launch)
        return ExitStatus(exit_code=launch.exit_code)

    async def _reap(self, launch: _Launch) -> None:
        """Wait for a child that has ended, and keep its exit code. Any number of callers."""
        while launch.is_child and not launch.ended:
            try:
                found = _wait_child(launch.kin.leader.pid)
            except ChildProcessError:  # somebody else in this process has waited for it
                break
            if found is not None:
                killed = found.si_code != os.CLD_EXITED
                launch.exit_code = -found.si_status if killed else found.si_status
                break
            await trio.sleep(REAP_POLL_S)
        launch.ended = True

    async def _last_words(self, launch: _Launch) -> None:
        """Let the relay finish, briefly: survivors of the launch may keep it busy."""
        relay = launch.kin.relay
        if relay is not None and relay.pid in self._relays:
            with trio.move_on_after(LAST_WORDS_S):
                await wait_gone(relay)
        self._reap_relays()

    def _reap_relays(self) -> None:
        for pid in tuple(self._relays):
            try:
                if _wait_child(pid) is None:
                    continue
            except ChildProcessError:
                pass
            del self._relays[pid]

    async def _known(self, process: ProcessIdentity) -> _Launch:
        """What is known of a process; one that is not our child is adopted."""
        if process not in self._launches:
            kin = await trio.to_thread.run_sync(_adopt, process)
            self._launches.setdefault(process, _Launch(kin=kin, is_child=False))
            self._forget_oldest()
        return self._launches[process]

    def is_running(self, process: ProcessIdentity) -> bool:
        return not is_gone(process)

    def group_members(self, process: ProcessIdentity) -> tuple[int, ...]:
        """See the contract: pids in the group or session, zombies left out. Costs about
        a microsecond for each process of the machine."""
        return group_pids(process.pid)

    async def members(self, process: ProcessIdentity) -> Mapping[int, ProcessIdentity]:
        """All living processes of the launch, also those that left its group; by pid.

        The leader is among them while it lives. Looks at the whole of ``/proc`` in a thread.
        """
        launch = await self._known(process)
        await launch.kin.record()
        return launch.kin.members()

    async def stranger_on(self, process: ProcessIdentity, port: int) -> int | None:
        inodes = await trio.to_thread.run_sync(listening_inodes, port)
        if not inodes or await _holders(inodes, self.group_members(process)):
            return None
        if await _holders(inodes, await self.members(process)):
            return None
        strangers = await _holders(inodes, running_pids())
        return strangers[0] if strangers else None

    async def end(self, process: ProcessIdentity, *, grace_s: float, proof_s: float) -> bool:
        """See the contract. Members that left the group are ended as well.

        Cancelling stops signalling and waiting; calling again carries on.
        """
        launch = await self._known(process)
        proven = await end_group(launch.kin, grace_s=grace_s, proof_s=proof_s)
        if is_gone(process):
            await self._reap(launch)
        await self._last_words(launch)
        return proven

    async def log_tail(
        self,
        deployment: DeploymentId,
        launch: LaunchId,
        *,
        bytes_max: int,
        secrets: Iterable[str] = (),
    ) -> tuple[str, bool] | None:
        """See the contract. ``secrets`` are taken out beside those the launch was given."""
        redactor = Redactor((*self._secrets.get(launch, ()), *secrets))

        def read() -> tuple[str, bool] | None:
            return self._logs.tail(deployment, launch, bytes_max=bytes_max, redactor=redactor)

        return await trio.to_thread.run_sync(read)

    def _forget_oldest(self) -> None:
        while len(self._secrets) > REMEMBERED_COUNT_MAX:
            del self._secrets[next(iter(self._secrets))]
        ended = [process for process, launch in self._launches.items() if launch.ended]
        for process in ended[: max(0, len(self._launches) - REMEMBERED_COUNT_MAX)]:
            del self._launches[process]


async def _holders(inodes: Iterable[int], pids: Iterable[int]) -> tuple[int, ...]:
    return await trio.to_thread.run_sync(holders, frozenset(inodes), tuple(pids))


def _wait_child(pid: int) -> os.waitid_result | None:
    """Reap a child if it has ended. Never blocks. Raises ChildProcessError: it is none."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _adopt(process: ProcessIdentity) -> Kin:
    return adopt(process, relay_program=RELAY_PROGRAM)

"""Whatever a launch has become, ending it leaves nothing, and says so only when it is proven."""

import os
import signal
import subprocess
import sys

import attrs
import pytest
import trio

from capyctl.launch.ending import end_group
from capyctl.launch.identity import is_gone
from capyctl.launch.kin import Kin, group_is_ours
from tests.launch.programs import (
    COUNT_TERMS,
    DAEMONISES,
    IGNORE_TERM,
    LEADER_LEAVES,
    REST,
    identify,
    until,
)

pytestmark = pytest.mark.slow


async def test_a_polite_engine_is_told_once_and_exits_by_itself(bench):
    process = await bench.run(bench.program(COUNT_TERMS))
    await bench.ear.pid("up")

    assert await bench.processes.end(process, grace_s=15, proof_s=5)

    assert await bench.ear.pid("term") == process.pid
    assert (await bench.processes.wait_exit(process)).exit_code == 7


async def test_a_group_that_ignores_sigterm_is_killed_after_the_grace(bench):
    process = await bench.run(bench.program("os.fork(); " + IGNORE_TERM))
    pids = {await bench.ear.pid("up"), await bench.ear.pid("up")}
    assert set(bench.processes.group_members(process)) == pids
    began = trio.current_time()

    assert await bench.processes.end(process, grace_s=0.3, proof_s=5)

    assert 0.3 <= trio.current_time() - began < 10
    assert bench.processes.group_members(process) == ()
    assert (await bench.processes.wait_exit(process)).exit_code == -signal.SIGKILL


async def test_a_child_that_outlives_its_leader_is_found_and_ended(bench):
    process = await bench.run(bench.program(LEADER_LEAVES))
    child = identify(await bench.ear.pid("child"))
    bench.open_gate()
    assert (await bench.processes.wait_exit(process)).exit_code == 3
    assert not is_gone(child)
    assert not bench.processes.is_running(process)

    assert await bench.processes.end(process, grace_s=0.1, proof_s=5)
    assert is_gone(child)


@pytest.mark.parametrize("output", ["logs", "quiet"])
async def test_a_daemonised_grandchild_is_ended_too(bench, output):
    """``quiet`` has no pipe of ours any more: it is known because it was seen in time."""
    process = await bench.run(bench.program(DAEMONISES, output))
    daemon = identify(await bench.ear.pid("daemon"))
    if output == "quiet":
        assert daemon.pid in await bench.processes.members(process)
    bench.open_gate()
    said = {(await bench.ear.line())[0] for _ in range(2)}
    assert said == {"loose", "up"}
    assert daemon.pid not in bench.processes.group_members(process)

    assert await bench.processes.end(process, grace_s=5, proof_s=5)
    assert is_gone(daemon)


async def test_a_reused_pid_is_neither_running_nor_signalled(bench):
    process = await bench.run(bench.program(COUNT_TERMS))
    await bench.ear.pid("up")
    earlier = attrs.evolve(process, start_ticks=process.start_ticks - 1)

    assert not bench.processes.is_running(earlier)
    assert (await bench.processes.wait_exit(earlier)).exit_code is None
    assert await bench.processes.end(earlier, grace_s=1, proof_s=1)

    assert bench.processes.is_running(process)


async def test_another_boot_has_nothing_left(bench):
    process = await bench.run(bench.program(REST))
    before = attrs.evolve(process, boot_id="00000000-0000-0000-0000-000000000000")

    assert not bench.processes.is_running(before)
    assert await bench.processes.end(before, grace_s=1, proof_s=1)
    assert bench.processes.is_running(process)


def foreign_parent() -> subprocess.Popen:
    """A process and its child, neither of them launched by us."""
    program = "import os; os.write(1, b'%d\\n' % os.fork()); os.read(0, 1)"
    words = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, start_new_session=True)


async def test_a_group_that_may_be_a_strangers_is_not_signalled_and_not_proven(bench):
    """The leader is gone, and nothing that was known alive is in the group of that number."""
    with foreign_parent() as parent:
        assert parent.stdout is not None
        lines = {int(await trio.to_thread.run_sync(parent.stdout.readline)) for _ in range(2)}
        survivor = identify(max(lines))
        leader = identify(parent.pid)
        parent.kill()
        parent.wait()

        assert not group_is_ours(leader, {})
        assert not await end_group(Kin(leader), grace_s=0.05, proof_s=0.1)
        assert not is_gone(survivor)

        known = Kin(leader)
        known._known[survivor.pid] = survivor  # as if recorded while the leader lived
        assert await end_group(known, grace_s=5, proof_s=5)
        assert is_gone(survivor)


async def test_a_cancelled_end_can_be_called_again(bench):
    process = await bench.run(bench.program(IGNORE_TERM))
    await bench.ear.pid("up")
    with trio.move_on_after(0.1) as scope:
        await bench.processes.end(process, grace_s=30, proof_s=5)
    assert scope.cancelled_caught
    assert bench.processes.is_running(process)

    assert await bench.processes.end(process, grace_s=0, proof_s=5)


async def test_the_end_and_the_wait_go_on_together(bench):
    process = await bench.run(bench.program(REST))
    await bench.ear.pid("up")
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(bench.processes.wait_exit, process)
        assert await bench.processes.end(process, grace_s=5, proof_s=5)

    assert (await bench.processes.wait_exit(process)).exit_code == -signal.SIGTERM
    assert await bench.processes.end(process, grace_s=5, proof_s=5)


async def test_a_stopped_process_is_killed(bench):
    process = await bench.run(bench.program(REST))
    await bench.ear.pid("up")
    os.kill(process.pid, signal.SIGSTOP)

    assert await bench.processes.end(process, grace_s=0.05, proof_s=5)


async def test_what_a_wrapper_shell_forks_ends_with_it(bench):
    script = bench.program(REST)
    words = ("/bin/sh", "-c", 'setsid "$0" "$@" & exit 0', *script.argv)
    process = await bench.run(bench.command(*words, env={"PATH": "/usr/bin:/bin"}))
    engine = identify(await bench.ear.pid("up"))
    await until(lambda: not bench.processes.is_running(process))

    assert await bench.processes.end(process, grace_s=5, proof_s=5)
    assert is_gone(engine)

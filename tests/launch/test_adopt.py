"""A daemon that dies leaves no latch behind, and engines that the next one finds and ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from capyctl.domain.identity import ProcessIdentity
from capyctl.launch.identity import is_gone
from tests.launch.programs import LEADER_LEAVES, PRELUDE, REST, identify, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DAEMON = """
import json, sys, trio
from pathlib import Path
from capyctl.contracts.processes import Command
from capyctl.launch.processes import LocalProcesses
state_dir, opened, argv = sys.argv[1], sys.argv[2] == "open", json.loads(sys.argv[3])
async def main():
    processes = LocalProcesses(Path(state_dir))
    command = Command(launch="01J0000000000000000000000A", deployment="D", argv=argv, env={})
    process = await processes.spawn(command)
    if opened:
        await processes.open_latch(command.launch)
    print(process.pid, process.boot_id, process.start_ticks, flush=True)
    await trio.sleep(60)
trio.run(main)
"""


async def killed_daemon(bench, latch: str, body: str) -> ProcessIdentity:
    """What a daemon that was killed by SIGKILL had spawned."""
    words = [sys.executable, "-I", "-S", "-c", PRELUDE + body, str(bench.ear.path), str(bench.gate)]
    argv = [sys.executable, "-c", DAEMON, str(bench.state_dir), latch, json.dumps(words)]
    daemon = await trio.lowlevel.open_process(
        argv, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    )
    assert daemon.stdout is not None
    async with daemon.stdout:
        said = b""
        while not said.endswith(b"\n"):
            more = await daemon.stdout.receive_some()
            assert more
            said += more
    daemon.kill()
    await daemon.wait()
    pid, boot_id, ticks = said.decode().split()
    process = ProcessIdentity(pid=int(pid), boot_id=boot_id, start_ticks=int(ticks))
    bench.adopted(process)
    return process


async def test_a_latch_that_was_not_opened_exits_with_its_daemon(bench):
    process = await killed_daemon(bench, "shut", "tell('ran', 1)")

    with trio.fail_after(10):
        assert (await bench.processes.wait_exit(process)).exit_code is None
    assert bench.processes.group_members(process) == ()
    assert await bench.processes.end(process, grace_s=0, proof_s=1)


async def test_an_engine_and_its_log_go_on_and_are_adopted(bench):
    body = "tell('up', 1); os.read(os.open(sys.argv[2], os.O_RDONLY), 1);"
    body += "os.write(1, b'after\\n'); tell('wrote', os.getpid()); rest()"
    process = await killed_daemon(bench, "open", body)
    await bench.ear.line()
    bench.open_gate()
    assert await bench.ear.pid("wrote") == process.pid
    log = bench.state_dir / "logs/D/01J0000000000000000000000A.log"
    await until(lambda: log.read_text() == "after\n")

    assert bench.processes.is_running(process)
    assert bench.processes.group_members(process) == (process.pid,)
    with trio.move_on_after(0.05) as scope:
        await bench.processes.wait_exit(process)
    assert scope.cancelled_caught
    assert await bench.processes.end(process, grace_s=5, proof_s=5)
    assert (await bench.processes.wait_exit(process)).exit_code is None
    assert not bench.processes.is_running(process)


async def test_survivors_of_a_leader_that_died_meanwhile_are_found_by_their_log(bench):
    process = await killed_daemon(bench, "open", LEADER_LEAVES)
    child = identify(await bench.ear.pid("child"))
    bench.open_gate()
    await until(lambda: not bench.processes.is_running(process))

    assert await bench.processes.members(process) == {child.pid: child}
    assert await bench.processes.end(process, grace_s=0.05, proof_s=5)
    assert is_gone(child)


async def test_waiting_for_an_adopted_engine_ends_with_it(bench):
    process = await killed_daemon(bench, "open", REST)
    await bench.ear.pid("up")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.processes.wait_exit, process)
        await trio.testing.wait_all_tasks_blocked()
        os.kill(process.pid, signal.SIGKILL)

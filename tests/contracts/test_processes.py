"""What every implementation of `contracts.processes.Processes` does."""

import signal

import attrs
import pytest
import trio

from capyctl.contracts.processes import Command, SpawnFailed
from capyctl.domain.ids import DeploymentId, LaunchId
from capyctl.launch.processes import LocalProcesses

pytestmark = pytest.mark.slow

DEPLOYMENT = DeploymentId("01J0000000000000000000000D")
LAUNCH = LaunchId("01J0000000000000000000000A")
ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture(params=[LocalProcesses])
def processes(request, tmp_path):
    return request.param(tmp_path / "state")


def command(*argv: str, launch: LaunchId = LAUNCH, **rest) -> Command:
    return Command(launch=launch, deployment=DEPLOYMENT, argv=argv, env=ENV, **rest)


async def test_a_command_runs_only_once_its_latch_is_open(processes):
    process = await processes.spawn(command("echo", "hello"))
    assert processes.is_running(process)
    assert await processes.log_tail(DEPLOYMENT, LAUNCH, bytes_max=100) in (None, ("", False))

    await processes.open_latch(LAUNCH)
    status = await processes.wait_exit(process)

    assert status.exit_code == 0
    assert not processes.is_running(process)
    assert await processes.log_tail(DEPLOYMENT, LAUNCH, bytes_max=100) == ("hello\n", False)


async def test_an_exit_code_is_reported_every_time(processes):
    process = await processes.spawn(command("sh", "-c", "exit 3"))
    await processes.open_latch(LAUNCH)

    assert [(await processes.wait_exit(process)).exit_code for _ in range(2)] == [3, 3]


async def test_a_discarded_latch_is_gone_and_cannot_be_opened(processes):
    process = await processes.spawn(command("sleep", "60"))
    await processes.discard(LAUNCH)
    await processes.discard(LAUNCH)

    assert not processes.is_running(process)
    with pytest.raises(SpawnFailed):
        await processes.open_latch(LAUNCH)


async def test_discarding_what_was_opened_or_never_existed_does_nothing(processes):
    process = await processes.spawn(command("sleep", "60"))
    await processes.open_latch(LAUNCH)
    await processes.discard(LAUNCH)
    await processes.discard(LaunchId("01J0000000000000000000000Z"))

    assert processes.is_running(process)
    assert await processes.end(process, grace_s=0, proof_s=5)


async def test_the_end_is_proven_and_may_be_asked_for_again(processes):
    process = await processes.spawn(command("sleep", "60"))
    await processes.open_latch(LAUNCH)
    assert process.pid in processes.group_members(process)

    assert await processes.end(process, grace_s=5, proof_s=5)
    assert await processes.end(process, grace_s=5, proof_s=5)

    assert processes.group_members(process) == ()
    assert (await processes.wait_exit(process)).exit_code == -signal.SIGTERM


async def test_a_cancelled_wait_leaves_the_process_alone(processes):
    process = await processes.spawn(command("sleep", "60"))
    await processes.open_latch(LAUNCH)
    with trio.move_on_after(0.01) as scope:
        await processes.wait_exit(process)
    assert scope.cancelled_caught
    assert processes.is_running(process)

    assert await processes.end(process, grace_s=0, proof_s=5)


async def test_the_same_pid_at_another_time_is_another_process(processes):
    process = await processes.spawn(command("sleep", "60"))
    await processes.open_latch(LAUNCH)
    earlier = attrs.evolve(process, start_ticks=process.start_ticks - 1)

    assert not processes.is_running(earlier)
    assert str(await processes.wait_exit(earlier)) == "exit status unknown"
    assert processes.is_running(process)
    assert await processes.end(process, grace_s=0, proof_s=5)


async def test_a_log_never_shows_its_secrets(processes):
    process = await processes.spawn(command("echo", "key sesame-9", secrets=("sesame-9",)))
    await processes.open_latch(LAUNCH)
    await processes.wait_exit(process)

    found = await processes.log_tail(DEPLOYMENT, LAUNCH, bytes_max=100)
    assert found == ("key <redacted>\n", False)


async def test_a_tail_is_whole_lines_and_says_that_earlier_ones_are_left_out(processes):
    process = await processes.spawn(command("printf", "%s\\n", "first", "second", "third"))
    await processes.open_latch(LAUNCH)
    await processes.wait_exit(process)

    assert await processes.log_tail(DEPLOYMENT, LAUNCH, bytes_max=15) == ("second\nthird\n", True)
    assert await processes.log_tail(DEPLOYMENT, LAUNCH, bytes_max=3) == ("", True)


async def test_a_raw_log_is_refused(processes):
    process = await processes.spawn(command("echo", "hello", raw_log=True))
    await processes.open_latch(LAUNCH)
    await processes.wait_exit(process)

    with pytest.raises(PermissionError):
        await processes.log_tail(DEPLOYMENT, LAUNCH, bytes_max=100)


async def test_a_missing_executable_is_named(processes):
    with pytest.raises(SpawnFailed, match="/no/such/engine"):
        await processes.spawn(command("/no/such/engine"))

"""What a launched process is given, and what is left behind: nothing."""

import os
import signal
import sys
from pathlib import Path

import pytest
import trio

from capyctl.contracts.processes import SpawnFailed
from capyctl.launch.identity import is_gone
from capyctl.launch.kin import descriptor_target, running_pids, take_census
from tests.launch.programs import COUNT_TERMS, DEPLOYMENT, REST, descriptors, until

pytestmark = pytest.mark.slow


DISCARDED = 125
"""Exit status of a latch whose daemon let go of it."""


def children() -> set[int]:
    """Our children, zombies among them."""
    found = set()
    for pid in running_pids():
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == os.getpid():
            found.add(pid)
    return found


def shown(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


async def test_the_environment_is_exactly_what_was_given(bench):
    env = {"PLAIN": "1", "LINES": "a\nb", "UMLAUT": "grün", "EMPTY": "", "PATH": "/usr/bin:/bin"}
    command = bench.command("env", "-0", env=env, raw_log=True)
    process = await bench.run(command)
    assert (await bench.processes.wait_exit(process)).exit_code == 0

    said = bench.log(command).read_bytes().rstrip(b"\0").split(b"\0")
    assert sorted(said) == sorted(f"{name}={value}".encode() for name, value in env.items())


async def test_arguments_arrive_unchanged(bench):
    words = ("two\nlines", "grün 🦫", "", "--flag=a b", "'\"\\", "\udcff")
    show = "import sys; sys.stdout.buffer.write(ascii(sys.argv[1:]).encode())"
    command = bench.command(sys.executable, "-I", "-S", "-X", "utf8", "-c", show, *words)
    process = await bench.run(command)
    await bench.processes.wait_exit(process)

    assert await bench.tail(command) == ascii(list(words)) + "\n"


async def test_it_has_three_descriptors_default_signals_and_its_own_session(bench, tmp_path):
    loose = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(loose, True)
    try:
        process = await bench.run(bench.command("sleep", "60", env={"PATH": "/usr/bin:/bin"}))
    finally:
        os.close(loose)

    opened = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
    assert opened == {0, 1, 2}
    assert descriptor_target(process.pid, 0) == "/dev/null"
    assert descriptor_target(process.pid, 1) == descriptor_target(process.pid, 2)
    assert os.getpgid(process.pid) == os.getsid(process.pid) == process.pid
    status = dict(line.split(b":\t", 1) for line in shown(process.pid, "status").splitlines())
    settable = sum(1 << number - 1 for number in signal.valid_signals())
    assert int(status[b"SigBlk"], 16) & settable == 0
    assert int(status[b"SigIgn"], 16) & settable == 0


async def test_nothing_of_the_command_shows_before_it_runs(bench):
    command = bench.command(
        "sleep", "60", "argument-of-the-engine", env={"KEY": "value-of-the-key", "PATH": "/bin"}
    )
    process = await bench.spawn(command)

    words = b""
    for who in (process.pid, next(iter(bench.processes._relays))):
        for name in ("cmdline", "environ"):
            words += shown(who, name)
    assert b"latch.py" in words
    assert b"value-of-the-key" not in words
    assert b"argument-of-the-engine" not in words


async def test_an_unopened_latch_runs_nothing_and_is_discarded(bench):
    command = bench.program("tell('ran', 1)")
    process = await bench.spawn(command)
    assert bench.processes.is_running(process)

    await bench.processes.discard(command.launch)
    await bench.processes.discard(command.launch)

    assert not bench.processes.is_running(process)
    ended = await bench.processes.wait_exit(process)
    assert ended.exit_code in (-signal.SIGKILL, DISCARDED)  # it may see its pipe close first
    with pytest.raises(SpawnFailed):
        await bench.processes.open_latch(command.launch)


async def test_a_latch_that_was_killed_cannot_be_opened(bench):
    command = bench.program(REST)
    process = await bench.spawn(command)
    os.kill(process.pid, signal.SIGKILL)
    await bench.processes.wait_exit(process)

    with pytest.raises(SpawnFailed, match="latch is gone"):
        await bench.processes.open_latch(command.launch)


@pytest.mark.parametrize(
    ("argv", "rest", "says"),
    [
        (("/no/such/engine",), {}, "/no/such/engine does not exist"),
        (("/etc/passwd",), {}, "/etc/passwd is not executable"),
        (("no-such-engine",), {"env": {"PATH": "/bin"}}, "no-such-engine is in no folder"),
        (("/bin/true",), {"cwd": "/no/such/folder"}, "/no/such/folder is not a folder"),
        (("/bin/true", "a\0b"), {}, "NUL"),
        (("/bin/true",), {"env": {"A=B": "1"}}, "environment variable"),
        ((), {}, "no command"),
    ],
)
async def test_what_cannot_run_is_said_before_anything_is_started(bench, argv, rest, says):
    before = children()
    with pytest.raises(SpawnFailed, match=says):
        await bench.processes.spawn(bench.command(*argv, **rest))
    assert children() == before


async def test_a_program_that_cannot_be_executed_is_told_when_the_latch_opens(bench, tmp_path):
    broken = tmp_path / "engine"
    broken.write_bytes(b"\x00\x01 no program")
    broken.chmod(0o755)
    command = bench.command(str(broken))
    process = await bench.spawn(command)

    with pytest.raises(SpawnFailed, match=r"cannot run .*engine: Exec format error"):
        await bench.processes.open_latch(command.launch)

    assert (await bench.processes.wait_exit(process)).exit_code == 126
    assert "Exec format error" in await bench.tail(command)


async def test_a_log_that_cannot_be_kept_starts_nothing(bench):
    bench.state_dir.mkdir()
    (bench.state_dir / "logs").write_text("a file where a folder should be")
    before = children()
    with pytest.raises(SpawnFailed, match="log"):
        await bench.processes.spawn(bench.program(REST))
    assert children() <= before


async def test_a_cancelled_wait_leaves_the_process_alone(bench):
    process = await bench.run(bench.program(COUNT_TERMS))
    await bench.ear.pid("up")
    with trio.move_on_after(0.05) as scope:
        await bench.processes.wait_exit(process)

    assert scope.cancelled_caught
    assert bench.processes.is_running(process)


async def test_a_cancelled_spawn_leaves_nothing(bench):
    before = children()
    for deadline_s in (0, 0.002, 0.005, 0.01, 0.015):
        with trio.move_on_after(deadline_s):
            await bench.spawn(bench.program(REST))
    await bench.processes.aclose()

    await until(lambda: not (bench.processes._reap_relays() or children() - before))


async def test_a_zombie_counts_as_gone_before_it_is_waited_for(bench):
    process = await bench.run(bench.command("/bin/true"))

    await until(lambda: not bench.processes.is_running(process))
    assert (await bench.processes.wait_exit(process)).exit_code == 0


async def test_twenty_at_once_leave_no_descriptor_and_no_child(bench):
    before = descriptors(), children()
    commands = [bench.program(REST) for _ in range(20)]
    begun = []

    async def run(command):
        begun.append(await bench.run(command))

    async with trio.open_nursery() as nursery:
        for command in commands:
            nursery.start_soon(run, command)
    pids = {await bench.ear.pid("up") for _ in commands}
    assert pids == {process.pid for process in begun}

    async with trio.open_nursery() as nursery:
        for process in begun:
            nursery.start_soon(lambda p: bench.processes.end(p, grace_s=10, proof_s=5), process)
    assert all(is_gone(process) for process in begun)
    await until(lambda: not (bench.processes._reap_relays() or children() - before[1]))
    assert descriptors() == before[0]


async def test_the_relay_has_its_own_session_and_ends_by_no_polite_signal(bench):
    """Without it the engine's next line would fail."""
    command = bench.program("os.write(1, b'x' * 200 + b'\\n'); tell('wrote', os.getpid()); rest()")
    await bench.spawn(command)
    relay = next(iter(bench.processes._relays))
    assert descriptor_target(relay, 1) == "/dev/null"
    assert os.getsid(relay) == relay
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(relay, number)
    await bench.processes.open_latch(command.launch)
    await bench.ear.pid("wrote")

    assert relay in take_census(0)


async def test_no_log_is_none_and_a_raw_one_is_never_shown(bench):
    command = bench.command("/bin/echo", "api_key=sesame", raw_log=True)
    assert await bench.processes.log_tail(DEPLOYMENT, command.launch, bytes_max=100) is None
    await bench.processes.wait_exit(await bench.run(command))

    assert bench.log(command).read_text() == "api_key=sesame\n"
    with pytest.raises(PermissionError):
        await bench.processes.log_tail(DEPLOYMENT, command.launch, bytes_max=100)


async def test_logs_are_for_their_owner_only(bench):
    command = bench.command("/bin/echo", "hello")
    await bench.processes.wait_exit(await bench.run(command))

    log = bench.log(command)
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.parent.stat().st_mode & 0o777 == log.parent.parent.stat().st_mode & 0o777 == 0o700

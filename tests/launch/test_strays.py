"""Launches that nobody knows are found by what runs, and ended."""

import os
import signal
from functools import partial

import attrs
import pytest

from capyctl.domain.ids import LaunchId
from capyctl.launch.identity import wait_gone
from capyctl.launch.strays import MARK, LaunchStrays, find_launches, mark_of

pytestmark = pytest.mark.slow


def marked(bench, *argv):
    command = bench.command(*argv)
    return attrs.evolve(command, env={MARK: mark_of(bench.state_dir, command.launch)})


async def test_a_launch_shows_by_its_relay_and_by_its_mark(bench):
    plain = await bench.run(bench.command("/bin/sleep", "60"))
    command = marked(bench, "/bin/sleep", "60")
    process = await bench.run(command)

    found = find_launches(bench.state_dir)

    assert found[command.launch] == {process}
    assert plain in set().union(*found.values())
    assert find_launches(bench.state_dir.parent / "other") == {}


async def test_a_launch_without_its_relay_is_found_by_its_mark(bench):
    command = marked(bench, "/bin/sleep", "60")
    process = await bench.run(command)
    (relay,) = bench.processes._relays.values()
    os.kill(relay.pid, signal.SIGKILL)
    await wait_gone(relay)

    assert find_launches(bench.state_dir) == {command.launch: {process}}


async def test_all_but_the_known_are_ended(bench):
    known, other = marked(bench, "/bin/sleep", "60"), marked(bench, "/bin/sleep", "61")
    kept, gone = await bench.run(known), await bench.run(other)
    end = partial(bench.processes.end, grace_s=5.0, proof_s=5.0)

    ended = await LaunchStrays(state_dir=bench.state_dir, end=end).end_others([known.launch])

    assert ended == {other.launch}
    assert bench.processes.is_running(kept)
    assert not bench.processes.is_running(gone)


async def test_an_end_that_is_not_proved_is_tried_again(bench):
    command = marked(bench, "/bin/sleep", "60")
    process = await bench.run(command)
    tries = []

    async def end(leader):
        tries.append(leader)
        return len(tries) == 3

    strays = LaunchStrays(state_dir=bench.state_dir, end=end, again_s=0.01)
    await strays.end_others([LaunchId("none")])

    assert tries == [process] * 3

"""Killed at any moment: what was acknowledged is there, whole, and nothing is there in part."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from tests.store.crashing import CRASHED
from tests.store.making import accepted, all_events, noted, opened, operation


def child(folder, *how: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.store.crashing", os.fspath(folder), *how],
        stdout=subprocess.PIPE,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_killed_while_committing(tmp_path, seed):
    """Three lives of one database, each ended after a random number of acknowledgements."""
    dice = random.Random(seed)
    acknowledged: set[int] = set()
    for run in range(3):
        with child(tmp_path, "commit_for_ever", str(run)) as process:
            for _ in range(dice.randrange(1, 400)):
                acknowledged.add(int(process.stdout.readline()))
            process.kill()
            acknowledged.update(int(line) for line in process.stdout if line.endswith(b"\n"))

    async with opened(tmp_path) as store:
        stored = await store.load()
        events = await all_events(store)
        assert store.put_back is None
        assert stored.session_epoch == 4
        for number in acknowledged:
            assert await store.find_receipt("create", str(number)) == accepted(number).receipt

    found = [int(event.operation[2:]) for event in events]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert found[::2] == found[1::2], "both events of a change, or none"
    assert acknowledged <= set(found)
    newest = sorted(found[::2])[-1000:]
    assert stored.operations == tuple(operation(number) for number in newest)


@pytest.mark.slow
async def test_a_full_disk_breaks_the_store_and_spoils_nothing(tmp_path):
    with child(tmp_path, "fill_the_disk") as process:
        done_count = int(process.stdout.read())
    assert process.returncode == CRASHED
    assert 10 < done_count < 10_000

    async with opened(tmp_path) as store:
        stored = await store.load()
        assert stored.operations == tuple(operation(n) for n in range(done_count))
        assert stored.last_seq == 2 * done_count
        assert (await store.commit(noted(1))).events[0].seq == 2 * done_count + 1
        assert store.put_back is None

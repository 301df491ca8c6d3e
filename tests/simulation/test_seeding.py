"""A seed decides everything, also across processes with other hashes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import trio
from trio._core import _run

from capyctl.simulation.run import Simulation
from capyctl.simulation.seeding import part, seeded_scheduler

DIGEST = "from capyctl.simulation.run import Simulation; print(Simulation({seed}).run().digest)"


async def order_of_tasks() -> list[int]:
    seen: list[int] = []

    async def one(number):
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            seen.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(one, number)
    return seen


def scheduled(seed: int) -> list[int]:
    with seeded_scheduler(seed):
        return trio.run(order_of_tasks)


def test_trio_still_has_the_two_names():
    assert isinstance(_run._ALLOW_DETERMINISTIC_SCHEDULING, bool)
    assert hasattr(_run._r, "seed")


def test_one_seed_is_one_order_and_others_are_others():
    assert scheduled(1) == scheduled(1)
    assert len({tuple(scheduled(seed)) for seed in range(5)}) > 1


def test_the_scheduler_is_left_as_it_was():
    before = _run._r.getstate(), _run._ALLOW_DETERMINISTIC_SCHEDULING

    scheduled(3)

    assert (_run._r.getstate(), _run._ALLOW_DETERMINISTIC_SCHEDULING) == before


def test_parts_of_a_world_do_not_disturb_each_other():
    assert part(1, "a").random() == part(1, "a").random()
    assert part(1, "a").random() != part(1, "b").random()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_a_world_is_the_same_in_every_process(seed):
    digests = {Simulation(seed).run().digest}
    for hashes in ("0", "1"):
        ran = subprocess.run(
            [sys.executable, "-c", DIGEST.format(seed=seed)],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        digests.add(ran.stdout.strip())

    assert len(digests) == 1

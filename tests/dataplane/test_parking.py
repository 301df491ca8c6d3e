"""Bells and alarms."""

import math

import pytest
import trio
import trio.testing

from capyctl.dataplane.alarms import Alarms
from capyctl.dataplane.parking import Bell


async def test_a_ring_before_the_wait_is_not_lost():
    bell = Bell()
    bell.ring()
    await bell.wait()


async def test_rings_wake_the_waiting_task_once():
    bell = Bell()
    heard = []

    async def listen():
        while True:
            await bell.wait()
            heard.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await trio.testing.wait_all_tasks_blocked()
        bell.ring()
        bell.ring()
        await trio.testing.wait_all_tasks_blocked()
        assert len(heard) == 1
        bell.ring()
        await trio.testing.wait_all_tasks_blocked()
        assert len(heard) == 2
        nursery.cancel_scope.cancel()
    bell.ring()


class Watched:
    def __init__(self, *again: float) -> None:
        self.armed_s = math.inf
        self.again = list(again)
        self.looked: list[float] = []

    def on_alarm(self, now_s: float) -> float:
        self.looked.append(now_s - BEGIN[0])
        return now_s + self.again.pop(0) if self.again else math.inf


BEGIN = [0.0]


async def test_alarms_ring_at_their_times(autojump_clock):
    BEGIN[0] = trio.current_time()
    alarms = Alarms(trio.current_time)
    first, second, third = Watched(2.0, 3.0), Watched(), Watched(-1.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        alarms.arm(first, BEGIN[0] + 1.0)
        alarms.arm(second, BEGIN[0] + 5.0)
        await trio.sleep(0.25)
        alarms.arm(second, BEGIN[0] + 0.5)
        alarms.arm(third, BEGIN[0] + 8.0)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert first.looked == pytest.approx([1.0, 3.0, 6.0])
    assert second.looked == pytest.approx([0.5])
    assert third.looked == pytest.approx([8.0, 8.001])


async def test_nobody_waits_longer_than_the_interval_and_the_disarmed_are_left_alone(
    autojump_clock,
):
    BEGIN[0] = trio.current_time()
    alarms = Alarms(trio.current_time)
    patient, gone = Watched(1000.0), Watched()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        alarms.arm(patient, BEGIN[0] + 1.0)
        alarms.arm(gone, BEGIN[0] + 1.0)
        alarms.disarm(gone)
        alarms.arm(gone, BEGIN[0] + 2.0)
        await trio.sleep(70)
        nursery.cancel_scope.cancel()
    assert patient.looked == pytest.approx([1.0, 61.0])
    assert gone.looked == []

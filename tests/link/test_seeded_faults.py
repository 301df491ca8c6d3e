"""Random lives of launches under random faults of wires, hosts and servers: what always holds."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter

import pytest
import trio

from actors.testing import run_virtual
from capyctl.contracts.engines import EngineBroken, ParkRefused
from capyctl.contracts.host import LaunchRefused
from tests.link.fakes import order
from tests.link.rig import Rig, open_rig

FAULTS_S = 400.0
CALM_S = 200.0
LIVES_COUNT = 4
ONCE = ("park", "wake")


class History:
    """One seed's run: operators, the weather, and what is checked meanwhile."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.chance = random.Random(seed)
        self.asked: Counter = Counter()
        """Calls made, by method and launch."""
        self.restarts_count = 0
        """Of the host's process."""
        self.open_count = 0
        self.ended_count = 0
        self.launches_count = 0
        self.calm = False
        self.servers_began_at = [0]
        self.server_lives = trio.CancelScope()
        self.server_up = trio.Event()
        self.server_up.set()

    # -- operators --------------------------------------------------------------------------

    async def call(self, method, record, *args, **named):
        launch = record.launch
        self.asked[method, launch] += 1
        self.open_count += 1
        try:
            return await getattr(self.rig.remote, method)(record, *args, **named)
        finally:
            self.open_count -= 1
            self.ended_count += 1

    async def lives(self) -> None:
        """Operators of one server process after the other."""
        while not self.calm:
            await self.server_up.wait()
            self.server_lives = trio.CancelScope()
            with self.server_lives:
                async with trio.open_nursery() as nursery:
                    for record in list(self.rig.directory.launches.values()):
                        nursery.start_soon(self.end, record)
                    for _ in range(LIVES_COUNT):
                        nursery.start_soon(self.live_on)

    async def live_on(self) -> None:
        while not self.calm:
            with contextlib.suppress(LaunchRefused, EngineBroken, ParkRefused):
                await self.one_life()
            await trio.sleep(self.chance.uniform(0, 5))

    async def one_life(self) -> None:
        self.launches_count += 1
        wanted = order(f"{self.launches_count}")
        record = None
        with trio.move_on_after(self.patience_s()):
            record = await self.call("prepare", wanted)
        if record is None:
            return
        self.rig.directory.launches[record.launch] = record
        try:
            await self.call("run", record)
            await self.call("wait_ready", record, wanted)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.exit, record)
                for _ in range(self.chance.randint(0, 4)):
                    await trio.sleep(self.chance.uniform(0, 10))
                    with trio.move_on_after(self.patience_s()):
                        await self.call("park", record)
                        await self.call("wake", record)
                nursery.cancel_scope.cancel()
        except* (LaunchRefused, EngineBroken, ParkRefused):
            pass
        await self.end(record)

    def patience_s(self) -> float:
        return self.chance.choice((1.0, 10.0, 1000.0))

    async def exit(self, record) -> None:
        await self.call("wait_exit", record)

    async def end(self, record) -> None:
        await self.call("end", record, grace_s=1.0, idle_s=0.0)
        del self.rig.directory.launches[record.launch]

    # -- the weather ------------------------------------------------------------------------

    async def weather(self) -> None:
        rig, chance = self.rig, self.chance
        until_s = trio.current_time() + FAULTS_S
        while trio.current_time() < until_s:
            await trio.sleep(chance.expovariate(1 / 8))
            match chance.choice(
                ("cut", "delay", "deaf", "stick", "outage", "host", "server", "die")
            ):
                case "cut" if rig.wires:
                    rig.wire.cut()
                case "delay" if rig.wires:
                    rig.wire.delay(chance.uniform(0, 3))
                case "deaf" if rig.wires:
                    rig.wire.half_open(chance.randrange(2))
                case "stick" if rig.wires:
                    rig.wire.stick(True)
                    if chance.random() < 0.5:
                        await trio.sleep(chance.uniform(0, 8))
                        rig.wire.stick(False)
                case "outage":
                    rig.network = False
                    rig.wire.cut()
                    await trio.sleep(chance.choice((1.0, 8.0, 45.0)))
                    rig.network = True
                case "host":
                    await self.restart_host()
                case "server":
                    await self.restart_server()
                case "die" if rig.machine.alive:
                    rig.machine.engines[chance.choice(sorted(rig.machine.alive))].end()

    async def restart_host(self) -> None:
        self.rig.kill_host()
        self.restarts_count += 1
        await trio.sleep(self.chance.choice((0.1, 10.0, 60.0)))
        self.rig.start_host()

    async def restart_server(self) -> None:
        self.server_up = trio.Event()
        self.rig.kill_server()
        self.server_lives.cancel()
        await trio.sleep(self.chance.uniform(0, 3))
        self.servers_began_at.append(len(self.rig.events.told))
        self.rig.start_server()
        self.server_up.set()

    # -- what holds -------------------------------------------------------------------------

    def check_calls(self) -> None:
        """No process of the host does a call twice; none parks or wakes on its own account."""
        for (method, about), begun_count in self.rig.machine.calls.items():
            asked_count = self.asked[method, about]
            if method in ONCE:
                assert begun_count <= asked_count, f"{method} of {about} began {begun_count} times"
            elif asked_count:
                most = asked_count * (1 + self.restarts_count)
                assert begun_count <= most, f"{method} of {about} began {begun_count} times"

    def check_news(self) -> None:
        """In one server's life, suspended and lost come in this order between times online."""
        for first, last in itertools.pairwise([*self.servers_began_at, None]):
            self.check_life([name.split()[0] for name in self.rig.events.names[first:last]])

    def check_life(self, words: list[str]) -> None:
        state = "nothing"
        for word in words:
            assert (state, word) not in (
                ("suspended", "suspended"),
                ("lost", "suspended"),
                ("lost", "lost"),
                ("online", "lost"),
            ), self.rig.events.told
            state = word

    async def settle(self) -> None:
        """Faults are over: every call ends, and what nobody knows is gone after a reconnect."""
        self.calm = True
        await trio.sleep(CALM_S)
        assert self.open_count == 0, self.rig.remote.calls.open_ids
        self.rig.wire.cut()
        await trio.sleep(CALM_S)
        rig = self.rig
        assert rig.machine.alive == set(rig.directory.launches)
        assert rig.service.open_count == 0
        assert rig.remote.calls.open_ids == []
        assert rig.events.names[-1].startswith("online")
        self.check_calls()
        self.check_news()


async def run_history(seed: int) -> History:
    async with open_rig(seed=seed) as rig:
        rig.machine.takes_s = {
            "prepare": 0.5, "run": 0.1, "wait_ready": 4.0, "park": 2.0, "wake": 2.0, "end": 1.0
        }  # fmt: skip
        rig.strays.takes_s = 0.5
        history = History(rig, seed)
        rig.nursery.start_soon(history.lives)
        await history.weather()
        await history.settle()
        return history


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_every_call_ends_once_and_no_engine_is_left_unknown(seed):
    history = run_virtual(lambda: run_history(seed))

    assert history.ended_count > 20


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(1000, 1500))
def test_many_histories(seed):
    run_virtual(lambda: run_history(seed))

"""Looking at the machine: what goes wrong there is told, and costs nothing but its figures."""

from __future__ import annotations

import attrs
import trio

from actors import ChildSpec, open_system
from capyctl.control.directory import Directory
from capyctl.control.sampler import SamplerActor
from capyctl.control.surroundings import World
from capyctl.domain.devices import MemorySample
from capyctl.domain.ids import HostId
from capyctl.messages.placement import Sampled

HOST = HostId("h")


@attrs.define
class Machine:
    """Tells of its memory, or fails as it is told to."""

    problem: Exception | None = None
    looks_count: int = 0
    hangs: bool = False

    async def sample(self) -> MemorySample:
        self.looks_count += 1
        if self.hangs:
            await trio.sleep_forever()
        if self.problem is not None:
            raise self.problem
        return MemorySample(at_s=trio.current_time(), available_bytes={})


@attrs.define
class Told:
    samples: list[Sampled] = attrs.field(factory=list)
    lines: list[str] = attrs.field(factory=list)


def world(machine: Machine, told: Told) -> World:
    return World(
        store=None,
        clock=None,
        ids=None,
        hosts={HOST: machine},
        directory=Directory(),
        session_epoch=1,
        log=lambda event, **fields: told.lines.append(f"{event} {fields}"),
        tell=lambda ref, message: told.samples.append(message),
    )


async def run(machine: Machine, told: Told, for_s: float) -> None:
    def make() -> SamplerActor:
        return SamplerActor(world(machine, told), placement=None, host=HOST, kept=lambda *_: None)

    async with open_system(name="test") as system:
        await system.start_child(ChildSpec(name="sampler", make=make))
        await trio.sleep(for_s)


async def test_a_look_is_told_every_second(autojump_clock):
    machine, told = Machine(), Told()

    await run(machine, told, 10.5)

    assert len(told.samples) == 10
    assert told.lines == []


async def test_a_look_that_fails_each_time_ends_nothing_and_is_not_told_each_time(autojump_clock):
    """Not even with an error that nobody thought of."""
    machine, told = Machine(problem=RuntimeError("the driver answers nonsense")), Told()

    await run(machine, told, 120.5)

    assert machine.looks_count == 120
    assert told.samples == []
    assert 1 <= len(told.lines) <= 3
    assert "the driver answers nonsense" in told.lines[0]


async def test_looks_do_not_pile_up_behind_one_that_hangs(autojump_clock):
    machine, told = Machine(hangs=True), Told()

    await run(machine, told, 60.5)

    assert machine.looks_count == 1

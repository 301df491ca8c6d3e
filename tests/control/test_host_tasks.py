"""What an instance has under way on its host: answers, those that come too late, and failures."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from capyctl.contracts.engines import EngineBroken, ParkRefused
from capyctl.contracts.host import EndOutcome, LaunchRefused
from capyctl.contracts.hosts import CapabilityMissing, HostFailed
from capyctl.control.host_tasks import HostTasks
from capyctl.domain.identity import ExitStatus
from capyctl.domain.ids import InstanceId
from capyctl.gates.gate import Gate
from capyctl.messages import instance as m
from tests.machines.making import DEPLOYMENT, LAUNCH, record

RECORD = record()


@attrs.define
class Script:
    """A host whose calls end as the test says, when the test says."""

    answers: dict[str, list[object]] = attrs.field(factory=dict)
    calls: list[str] = attrs.field(factory=list)
    held: set[str] = attrs.field(factory=set)
    runs: bool = True

    async def _answer(self, name: str) -> object:
        self.calls.append(name)
        if name in self.held:
            await trio.sleep_forever()
        found = self.answers.get(name, [None])
        answer = found[0] if len(found) == 1 else found.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def prepare(self, order):
        return await self._answer("prepare") or RECORD

    async def run(self, record):
        await self._answer("run")

    async def discard(self, record):
        await self._answer("discard")

    async def wait_ready(self, record, order):
        return await self._answer("wait_ready")

    async def wait_exit(self, record):
        return await self._answer("wait_exit")

    async def park(self, record):
        return await self._answer("park")

    async def wake(self, record):
        await self._answer("wake")

    async def end(self, record, *, grace_s, idle_s):
        return await self._answer("end")

    def is_running(self, record):
        return self.runs

    def start_peak(self, record):
        return {}


class Told:
    """What the tasks told, as their actor reads it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.answers: list[object] = []
        self.tasks = HostTasks(self.spawn, self.answers.append, Gate(InstanceId(DEPLOYMENT, 0)))

    def spawn(self, fn, *args):
        scope = trio.CancelScope()

        async def within():
            with scope:
                await fn(*args)

        self.nursery.start_soon(within)
        return scope

    async def read(self) -> list[object]:
        await trio.testing.wait_all_tasks_blocked()
        answers, self.answers[:] = list(self.answers), []
        return [told for told in map(self.tasks.take, answers) if told is not None]


@asynccontextmanager
async def telling():
    async with trio.open_nursery() as nursery:
        yield Told(nursery)
        nursery.cancel_scope.cancel()


async def told_by(script: Script, call) -> list[object]:
    async with telling() as told:
        call(told.tasks, script)
        return await told.read()


GONE_WRONG = HostFailed("its log says more")


@pytest.mark.parametrize(
    ("script", "call", "expected"),
    [
        ({"prepare": [GONE_WRONG]}, lambda t, h: t.prepare(h, ORDER), m.LaunchNotPrepared),
        ({"wait_ready": [GONE_WRONG]}, lambda t, h: t.probe(h, RECORD, None, 9), m.EngineUnfit),
        ({"park": [GONE_WRONG]}, lambda t, h: t.park(h, RECORD, 9, "auto"), m.EngineBroken),
        ({"wake": [GONE_WRONG]}, lambda t, h: t.wake(h, RECORD, 9), m.EngineBroken),
        (
            {"park": [CapabilityMissing("park")]},
            lambda t, h: t.park(h, RECORD, 9, "auto"),
            m.EngineNotParked,
        ),
        (
            {"park": [ParkRefused("busy")]},
            lambda t, h: t.park(h, RECORD, 9, "auto"),
            m.EngineNotParked,
        ),
        (
            {"wake": [EngineBroken("wake_failed", "x")]},
            lambda t, h: t.wake(h, RECORD, 9),
            m.EngineBroken,
        ),
        (
            {"prepare": [LaunchRefused("no_engine", "x", permanent=True)]},
            lambda t, h: t.prepare(h, ORDER),
            m.LaunchNotPrepared,
        ),
    ],
)
async def test_what_a_host_cannot_do_is_an_answer(script, call, expected, autojump_clock):
    told = await told_by(Script(answers=dict(script)), call)

    assert [type(answer) for answer in told] == [expected]


ORDER = attrs.make_class("Order", {"launch": attrs.field(default=LAUNCH)})()


async def test_a_host_that_lacks_what_a_launch_needs_is_not_asked_again(autojump_clock):
    script = Script(answers={"prepare": [CapabilityMissing("checkpoint_gguf")]})

    (told,) = await told_by(script, lambda t, h: t.prepare(h, ORDER))

    assert told.permanent
    assert told.detail == "host_capability_missing:checkpoint_gguf"


async def test_an_end_goes_on_until_it_is_proven_and_is_doubted_once(autojump_clock):
    outcomes = [GONE_WRONG, EndOutcome.UNPROVEN, EndOutcome.BUSY, EndOutcome.GONE]
    script = Script(answers={"end": outcomes})
    async with telling() as told:
        told.tasks.end(script, RECORD, 1.0, 0.0)
        await trio.sleep(60)
        answers = await told.read()

    assert [type(answer) for answer in answers] == [m.EndUnproven, m.GroupGone]
    assert answers[0].detail == "its log says more"
    assert script.calls == ["end"] * 4


async def test_an_exit_is_waited_for_again_where_the_host_could_not(autojump_clock):
    script = Script(answers={"wait_exit": [GONE_WRONG, ExitStatus(exit_code=1)]})
    async with telling() as told:
        told.tasks.watch(script, RECORD, opens=False)
        await trio.sleep(60)
        answers = await told.read()

    assert [answer.how for answer in answers] == ["exit code 1"]


@pytest.mark.parametrize("runs", [True, False])
async def test_a_latch_that_cannot_be_opened_may_have_been_opened_before(runs, autojump_clock):
    script = Script(
        answers={"run": [LaunchRefused("latch_gone", "its latch is gone", permanent=False)]},
        held={"wait_exit"},
        runs=runs,
    )

    told = await told_by(script, lambda t, h: t.watch(h, RECORD, opens=True))

    assert [answer.how for answer in told] == ([] if runs else ["its latch is gone"])


# -- given up --------------------------------------------------------------------------------


async def test_everything_is_given_up_at_once(autojump_clock):
    script = Script(held={"prepare", "wait_exit", "wait_ready", "end", "discard"})
    async with telling() as told:
        told.tasks.prepare(script, ORDER)
        told.tasks.discard(script, RECORD)
        told.tasks.watch(script, RECORD, opens=False)
        told.tasks.probe(script, RECORD, None, 9.0)
        told.tasks.end(script, RECORD, 1.0, 0.0)
        await trio.testing.wait_all_tasks_blocked()
        told.tasks.drop()
        await trio.sleep(60)

        assert await told.read() == []


async def test_an_answer_that_was_on_its_way_counts_no_more(autojump_clock):
    async with telling() as told:
        told.tasks.probe(Script(), RECORD, None, 9.0)
        await trio.testing.wait_all_tasks_blocked()
        assert len(told.answers) == 1
        told.tasks.drop()

        assert await told.read() == []


async def test_a_latch_that_was_made_for_nobody_is_ended(autojump_clock):
    script = Script()
    async with telling() as told:
        told.tasks.prepare(script, ORDER)
        await trio.testing.wait_all_tasks_blocked()
        told.tasks.drop()
        await told.read()
        await trio.testing.wait_all_tasks_blocked()

        assert script.calls == ["prepare", "discard"]


async def test_what_begins_afterwards_counts(autojump_clock):
    async with telling() as told:
        told.tasks.drop()
        told.tasks.probe(Script(), RECORD, None, 9.0)

        assert [type(answer) for answer in await told.read()] == [m.EngineProved]


async def test_a_step_takes_the_place_of_the_one_before(autojump_clock):
    script = Script(held={"wait_ready"})
    async with telling() as told:
        told.tasks.probe(script, RECORD, None, 5.0)
        await trio.testing.wait_all_tasks_blocked()
        told.tasks.wake(script, RECORD, 9.0)
        await trio.sleep(60)

        assert [type(answer) for answer in await told.read()] == [m.EngineWoken]

"""How children end: asked to, made to, and who is told."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import (
    Actor,
    ActorGone,
    ChildSpec,
    RestartLimit,
    Supervisor,
)
from actors.body import STOP
from actors.testing import Probe


class Worker(Actor):
    """Writes what happens to it into ``log``; does what messages say."""

    def __init__(self, name, log, *, start_s=0.0, stop_s=0.0):
        super().__init__(name)
        self.log = log
        self.start_s = start_s
        self.stop_s = stop_s

    async def on_start(self):
        self.log.append(f"{self.name} starts")
        self.spawn(self._until_the_end)
        await trio.sleep(self.start_s)
        self.log.append(f"{self.name} ready")

    async def handle(self, message):
        match message:
            case "fail":
                raise ZeroDivisionError(self.name)
            case "stop":
                self.stop()
            case "hang":
                await trio.sleep_forever()
            case _:
                self.log.append(f"{self.name} got {message}")
                if (token := self.reply_to()) is not None:
                    token.answer(self)

    async def _until_the_end(self):
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.stop_s)
            self.log.append(f"{self.name} down")


def spec(name, log, restart="transient", limit=None, stop_within_s=None, **kwargs):
    return ChildSpec(
        name,
        lambda: Worker(name, log, **kwargs),
        restart,
        limit or RestartLimit(),
        stop_within_s,
    )


@pytest.fixture
async def supervisor(nursery):
    one = Supervisor()
    await nursery.start(one.run)
    return one


async def test_stop_child_is_final(supervisor):
    log = []
    ref = await supervisor.start_child(spec("a", log, "permanent"))

    await supervisor.stop_child("a")
    await supervisor.stop_child("a")

    assert log[-1] == "a down"
    assert log.count("a starts") == 1
    with pytest.raises(ActorGone):
        ref.tell("x")


async def test_a_name_is_free_again_after_its_child_has_gone(supervisor):
    log = []
    first = await supervisor.start_child(spec("a", log))
    with pytest.raises(ValueError, match="'a'"):
        supervisor.start_soon(spec("a", log))

    await supervisor.stop_child("a")
    second = await supervisor.start_child(spec("a", log))

    assert first.is_gone
    assert not second.is_gone


async def test_a_child_that_does_not_heed_is_cancelled_in_the_end(autojump_clock, nursery):
    log = []
    supervisor = Supervisor()
    await nursery.start(supervisor.run)
    ref = await supervisor.start_child(spec("a", log, stop_within_s=8.0))
    ref.tell("hang")
    await wait_all_tasks_blocked()

    await supervisor.stop_child("a")

    assert trio.current_time() == 8
    assert log[-1] == "a down"


async def test_a_start_that_hangs_can_be_stopped(autojump_clock, nursery):
    log = []
    supervisor = Supervisor()
    await nursery.start(supervisor.run)
    supervisor.start_soon(spec("a", log, start_s=1e6))
    await wait_all_tasks_blocked()

    await supervisor.stop_child("a")

    assert trio.current_time() == Actor.stop_within_s
    assert log == ["a starts", "a down"]


async def test_stop_soon_lets_a_body_end_a_child_without_waiting(supervisor):
    log = []
    ref = await supervisor.start_child(spec("a", log, "permanent"))

    supervisor.stop_soon("a")
    supervisor.stop_soon("a")
    supervisor.stop_soon("nobody")
    assert not ref.is_gone
    await wait_all_tasks_blocked()

    assert ref.is_gone
    assert log[-1] == "a down"


async def test_a_child_added_while_all_end_never_runs(autojump_clock, nursery):
    log = []
    group = Supervisor(children=[spec("a", log, stop_s=5)])
    await nursery.start(group.run)
    group.ref.mailbox.put_system(STOP)
    await trio.sleep(1)

    late = group.start_soon(spec("late", log))
    await trio.sleep(10)

    assert log == ["a starts", "a ready", "a down"]
    assert late.is_gone


async def test_a_child_stopped_before_it_ever_ran_is_gone(supervisor):
    log = []
    idle = Supervisor("idle", children=[spec("a", log)])
    ref = idle.find("a")

    idle.stop_soon("a")

    assert ref.is_gone
    assert idle.names == ()


async def test_watchers_hear_of_the_final_end_only(supervisor):
    log, probe = [], Probe()
    ref = await supervisor.start_child(spec("a", log))
    supervisor.watch("a", probe.ref, lambda failure: ("gone", failure))

    ref.tell("fail")
    assert await probe.settle() == []
    ref.tell("stop")

    assert await probe.next() == ("gone", None)
    assert await probe.settle() == []


async def test_watchers_hear_why(supervisor):
    probe = Probe()
    ref = await supervisor.start_child(spec("a", [], "temporary"))
    supervisor.watch("a", probe.ref, lambda failure: failure)

    ref.tell("fail")
    failure = await probe.next()

    assert (failure.name, failure.type, failure.text) == ("a", "ZeroDivisionError", "a")


async def test_a_notice_is_not_lost_to_a_full_mailbox(supervisor):
    probe = Probe(capacity=1)
    await supervisor.start_child(spec("a", []))
    supervisor.watch("a", probe.ref, lambda failure: "gone")
    probe.ref.tell("fills it")

    await supervisor.stop_child("a")

    assert probe.drain() == ["fills it", "gone"]


async def test_watching_again_replaces_and_unwatching_forgets(supervisor):
    one, two = Probe("one"), Probe("two")
    await supervisor.start_child(spec("a", []))
    supervisor.watch("a", one.ref, lambda failure: "first")
    supervisor.watch("a", one.ref, lambda failure: "second")
    supervisor.watch("a", two.ref, lambda failure: "never")
    supervisor.unwatch("a", two.ref)

    await supervisor.stop_child("a")

    assert (one.drain(), two.drain()) == (["second"], [])
    with pytest.raises(ActorGone):
        supervisor.watch("a", one.ref, lambda failure: "late")

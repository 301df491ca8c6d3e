"""One incarnation of an actor: its loop, its tasks, its stopping, its cancelling."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import Actor, ActorGone, MailboxFull
from actors.failure import leaves


class Recorder(Actor):
    """Keeps what it handles; a callable message is called with the actor."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []

    async def on_start(self):
        self.seen.append("on_start")

    async def handle(self, message):
        if callable(message):
            message(self)
        else:
            self.seen.append(message)


async def test_on_start_runs_before_any_message(nursery):
    actor = Recorder("r")
    actor.ref.tell("early")

    await nursery.start(actor.run)
    await wait_all_tasks_blocked()

    assert actor.seen == ["on_start", "early"]
    actor.stop()


async def test_stop_finishes_the_message_at_hand_and_handles_no_more(nursery):
    actor = Recorder("r")
    ref = await nursery.start(actor.run)

    ref.tell("a")
    ref.tell(Recorder.stop)
    ref.tell("never")
    await wait_all_tasks_blocked()

    assert actor.seen == ["on_start", "a"]
    with pytest.raises(ActorGone):
        ref.tell("late")


async def test_stop_is_seen_before_what_waits(nursery):
    actor = Recorder("r")
    ref = await nursery.start(actor.run)

    ref.tell("a")
    actor.stop()
    await wait_all_tasks_blocked()

    assert actor.seen == ["on_start"]


async def test_stop_cancels_spawned_tasks(nursery):
    actor = Recorder("r")
    ended = []

    async def task():
        try:
            await trio.sleep_forever()
        finally:
            ended.append("task")

    ref = await nursery.start(actor.run)
    ref.tell(lambda one: one.spawn(task))
    await wait_all_tasks_blocked()
    assert ended == []

    actor.stop()
    await wait_all_tasks_blocked()

    assert ended == ["task"]


async def test_a_spawned_task_works_beside_the_mailbox_and_comes_back_as_a_message(
    autojump_clock, nursery
):
    actor = Recorder("r")

    async def slow(answer):
        await trio.sleep(10)
        actor.ref.tell(answer)

    ref = await nursery.start(actor.run)
    ref.tell(lambda one: one.spawn(slow, "done"))
    ref.tell("meanwhile")
    await trio.sleep(11)

    assert actor.seen == ["on_start", "meanwhile", "done"]
    actor.stop()


async def test_one_spawned_task_can_be_cancelled_alone(autojump_clock, nursery):
    actor = Recorder("r")
    scopes = []

    async def slow(answer):
        await trio.sleep(10)
        actor.ref.tell(answer)

    ref = await nursery.start(actor.run)
    ref.tell(lambda one: scopes.append(one.spawn(slow, "a")))
    ref.tell(lambda one: scopes.append(one.spawn(slow, "b")))
    await wait_all_tasks_blocked()
    scopes[0].cancel()
    await trio.sleep(11)

    assert actor.seen == ["on_start", "b"]
    actor.stop()


@pytest.mark.parametrize("where", ["on_start", "handle", "task"])
async def test_an_exception_ends_the_actor_wherever_it_comes_from(where):
    class Broken(Actor):
        async def on_start(self):
            if where == "on_start":
                raise ZeroDivisionError
            if where == "task":
                self.spawn(self._break)
            self.ref.tell("go")

        async def handle(self, message):
            if where == "handle":
                raise ZeroDivisionError
            await trio.sleep_forever()

        async def _break(self):
            raise ZeroDivisionError

    actor = Broken("b")
    with pytest.raises(ExceptionGroup) as caught:
        await actor.run()

    assert [type(leaf) for leaf in leaves(caught.value)] == [ZeroDivisionError]
    assert actor.ref.is_gone


async def test_cancelling_cuts_the_message_at_hand(autojump_clock):
    cut = []

    class Slow(Actor):
        async def handle(self, message):
            try:
                await trio.sleep(100)
            finally:
                cut.append(trio.current_time())

    actor = Slow("s")
    actor.ref.tell("x")
    with trio.move_on_after(5) as scope:
        await actor.run()

    assert scope.cancelled_caught
    assert cut == [5]
    assert actor.ref.is_gone


async def test_capacity_is_the_bound_of_its_mailbox():
    actor = Recorder("r", capacity=1)
    actor.ref.tell("a")

    with pytest.raises(MailboxFull):
        actor.ref.tell("b")


async def test_an_actor_that_does_not_run_spawns_nothing():
    with pytest.raises(RuntimeError, match="on_start"):
        Recorder("r").spawn(trio.sleep, 1)


async def test_an_actor_object_runs_once(nursery):
    actor = Recorder("r")
    await nursery.start(actor.run)
    actor.stop()
    await wait_all_tasks_blocked()

    with pytest.raises(AssertionError, match="once"):
        await actor.run()

"""Asking: every asker gets an answer or an error, whatever happens to the actor."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import (
    Actor,
    ActorGone,
    AlreadyAnswered,
    AskTimedOut,
    ChildSpec,
    MailboxFull,
    NotAnswered,
    Supervisor,
    ask,
)


class Clerk(Actor):
    """Does with the reply token what the message says."""

    def __init__(self, name="clerk", **kwargs):
        super().__init__(name, **kwargs)
        self.kept = []

    async def handle(self, message):
        token = self.reply_to()
        match message:
            case "told?":
                token.answer(token is None)
            case "keep":
                self.kept.append(token)
            case "answer kept":
                for old in self.kept:
                    old.answer("at last")
            case "refuse":
                token.fail(ValueError("no"))
            case "fail":
                raise ZeroDivisionError
            case "stop":
                self.stop()
            case "twice":
                token.answer(1)
                with pytest.raises(AlreadyAnswered):
                    token.fail(ValueError("second"))
            case "same":
                token.answer(self.reply_to() is token)
            case "sleep":
                await trio.sleep(50)
            case _:
                token.answer(message)


class Silent(Actor):
    async def handle(self, message):
        pass


@pytest.fixture
async def clerk(nursery):
    return await nursery.start(Clerk().run)


async def test_an_answer_comes_back(clerk):
    assert await ask(clerk, "hello", within_s=1) == "hello"


async def test_a_refusal_is_raised_at_the_asker_and_harms_nobody_else(clerk):
    with pytest.raises(ValueError, match="no"):
        await ask(clerk, "refuse", within_s=1)

    assert await ask(clerk, "still there", within_s=1) == "still there"


async def test_a_token_may_be_answered_after_other_messages(clerk, nursery):
    answers = []

    async def asker():
        answers.append(await ask(clerk, "keep", within_s=60))

    nursery.start_soon(asker)
    await wait_all_tasks_blocked()
    assert await ask(clerk, "between", within_s=1) == "between"
    assert answers == []

    clerk.tell("answer kept")
    await wait_all_tasks_blocked()

    assert answers == ["at last"]


async def test_told_means_no_token(nursery):
    actor = Clerk()
    ref = await nursery.start(actor.run)

    ref.tell("keep")
    await wait_all_tasks_blocked()

    assert actor.kept == [None]


async def test_the_second_answer_is_an_error_where_it_is_given(clerk):
    assert await ask(clerk, "twice", within_s=1) == 1


async def test_one_message_has_one_token(clerk):
    assert await ask(clerk, "same", within_s=1) is True


async def test_no_answer_in_time(autojump_clock, nursery):
    clerk = await nursery.start(Clerk().run)

    with pytest.raises(AskTimedOut, match=r"clerk: no answer to str within 20 s"):
        await ask(clerk, "keep", within_s=20)

    assert trio.current_time() == 20


async def test_answering_an_asker_that_left_does_nothing(autojump_clock, nursery):
    actor = Clerk()
    ref = await nursery.start(actor.run)
    with pytest.raises(AskTimedOut):
        await ask(ref, "keep", within_s=1)
    with trio.move_on_after(1):
        await ask(ref, "keep", within_s=60)

    ref.tell("answer kept")

    assert await ask(ref, "alive", within_s=1) == "alive"
    with pytest.raises(AlreadyAnswered):
        actor.kept[0].answer("again")


async def test_an_actor_can_see_that_the_asker_left(autojump_clock, nursery):
    actor = Clerk()
    ref = await nursery.start(actor.run)
    with pytest.raises(AskTimedOut):
        await ask(ref, "keep", within_s=1)

    assert actor.kept[0].is_awaited is False
    assert repr(actor.kept[0]) == "<ReplyTo asker of clerk: left>"


@pytest.mark.parametrize("end", ["fail", "stop"])
async def test_whoever_waits_when_the_actor_ends_is_told(end, autojump_clock, nursery):
    """The kept one, the one at hand and the queued one: ActorGone, at once, all three."""
    supervisor = Supervisor()
    await nursery.start(supervisor.run)
    ref = await supervisor.start_child(ChildSpec("clerk", Clerk))
    raised = []

    async def asker(message):
        with pytest.raises(ActorGone) as caught:
            await ask(ref, message, within_s=60)
        raised.append((trio.current_time(), message, caught.value.name))

    nursery.start_soon(asker, "keep")
    await wait_all_tasks_blocked()
    ref.tell("sleep")
    for message in (end, "queued"):
        nursery.start_soon(asker, message)
        await wait_all_tasks_blocked()
    await trio.sleep(51)

    told = [(50, "keep", "clerk"), (50, end, "clerk"), (50, "queued", "clerk")]
    assert sorted(raised) == sorted(told)
    nursery.cancel_scope.cancel()


async def test_an_asker_of_a_cancelled_actor_is_told():
    actor = Clerk()
    async with trio.open_nursery() as nursery:
        ref = await nursery.start(actor.run)
        async with trio.open_nursery() as askers:

            @askers.start_soon
            async def _asker():
                with pytest.raises(ActorGone):
                    await ask(ref, "keep", within_s=60)

            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()


async def test_a_token_of_a_dead_incarnation_answers_nobody(autojump_clock, nursery):
    """Its asker has been told that the actor ended; the late answer is not an error."""
    made = []

    def make():
        made.append(Clerk())
        return made[-1]

    supervisor = Supervisor()
    await nursery.start(supervisor.run)
    ref = await supervisor.start_child(ChildSpec("clerk", make))
    nursery.start_soon(_swallow, ref)
    await wait_all_tasks_blocked()
    ref.tell("fail")
    await wait_all_tasks_blocked()

    made[0].kept[0].answer("too late")

    assert len(made) == 2
    nursery.cancel_scope.cancel()


async def _swallow(ref):
    with pytest.raises(ActorGone):
        await ask(ref, "keep", within_s=60)


async def test_a_message_nobody_will_answer_fails_at_once(autojump_clock, nursery):
    ref = await nursery.start(Silent("silent").run)

    with pytest.raises(NotAnswered, match="silent handled str"):
        await ask(ref, "hm?", within_s=60)

    assert trio.current_time() == 0


async def test_asking_a_full_or_gone_actor_raises_at_once(nursery):
    actor = Clerk(capacity=1)
    actor.ref.tell("x")
    with pytest.raises(MailboxFull):
        await ask(actor.ref, "y", within_s=60)

    actor.ref.mailbox.close()
    with pytest.raises(ActorGone):
        await ask(actor.ref, "y", within_s=60)


async def test_a_cancelled_ask_is_handled_all_the_same(autojump_clock, nursery):
    actor = Clerk()
    with trio.move_on_after(1):
        await ask(actor.ref, "keep", within_s=60)

    await nursery.start(actor.run)
    await wait_all_tasks_blocked()

    assert len(actor.kept) == 1


async def test_reply_to_belongs_to_the_message_at_hand(nursery):
    raised = []

    class Misuser(Actor):
        async def handle(self, message):
            self.reply_to().answer(None)
            self.spawn(self._task)

        async def _task(self):
            with pytest.raises(RuntimeError, match="only within handle"):
                self.reply_to()
            raised.append(True)

    ref = await nursery.start(Misuser("m").run)
    await ask(ref, "x", within_s=1)
    await wait_all_tasks_blocked()

    assert raised == [True]

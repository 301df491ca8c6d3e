"""Named timers: on time, in order, never late, never twice, never lost."""

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, settings
from trio.testing import wait_all_tasks_blocked

from actors import Actor, ChildSpec, Supervisor
from actors.testing import run_virtual
from actors.timers import SLACK_COUNT


class Timed(Actor):
    def __init__(self, name="timed", **kwargs):
        super().__init__(name, **kwargs)
        self.rang = []

    async def handle(self, message):
        if callable(message):
            await message(self)
        else:
            self.rang.append((trio.current_time(), message))


@pytest.fixture
async def actor(nursery):
    one = Timed()
    await nursery.start(one.run)
    return one


async def test_a_timer_rings_once_on_time(autojump_clock, nursery):
    actor = Timed()
    await nursery.start(actor.run)

    actor.timers.set("a", 5, "after")
    actor.timers.set_at("b", 3, "at")
    assert (actor.timers.names, actor.timers.due_at_s("a")) == (("a", "b"), 5)
    await trio.sleep(100)

    assert actor.rang == [(3, "at"), (5, "after")]
    assert actor.timers.names == ()
    assert actor.timers.due_at_s("a") is None


async def test_set_again_replaces(autojump_clock, nursery):
    actor = Timed()
    await nursery.start(actor.run)

    actor.timers.set("later", 5, "old")
    actor.timers.set("later", 9, "new")
    actor.timers.set("sooner", 50, "old")
    actor.timers.set("sooner", 2, "new")
    await trio.sleep(100)

    assert actor.rang == [(2, "new"), (9, "new")]


async def test_cancelled_timers_do_not_ring(autojump_clock, nursery):
    actor = Timed()
    await nursery.start(actor.run)

    actor.timers.set("a", 5, "a")
    actor.timers.set("b", 5, "b")
    actor.timers.cancel("a")
    actor.timers.cancel("never set")
    await trio.sleep(10)
    actor.timers.set("c", 5, "c")
    actor.timers.cancel_all()
    await trio.sleep(10)

    assert actor.rang == [(5, "b")]


@pytest.mark.parametrize("change", ["cancel", "set"])
async def test_a_ring_that_waits_in_the_mailbox_is_taken_back(change, autojump_clock, nursery):
    """The timer rings at 5 while a message is handled that, at 10, wants it no more."""
    actor = Timed()
    ref = await nursery.start(actor.run)

    async def slow(one):
        await trio.sleep(10)
        if change == "cancel":
            one.timers.cancel("t")
        else:
            one.timers.set("t", 3, "new")

    actor.timers.set("t", 5, "old")
    ref.tell(slow)
    await trio.sleep(100)

    assert actor.rang == ([] if change == "cancel" else [(13, "new")])


async def test_a_timer_lines_up_behind_what_came_before_it(autojump_clock, nursery):
    actor = Timed()
    ref = await nursery.start(actor.run)

    async def slow(one):
        await trio.sleep(10)

    actor.timers.set("t", 5, "timer")
    ref.tell(slow)
    await trio.sleep(4)
    ref.tell("before")
    await trio.sleep(2)
    ref.tell("after")
    await trio.sleep(100)

    assert actor.rang == [(10, "before"), (10, "timer"), (10, "after")]


async def test_a_full_mailbox_loses_no_timer(autojump_clock, nursery):
    actor = Timed(capacity=1)
    ref = await nursery.start(actor.run)

    async def slow(one):
        await trio.sleep(10)

    ref.tell(slow)
    await wait_all_tasks_blocked()
    ref.tell("fills it")
    actor.timers.set("t", 5, "timer")
    await trio.sleep(100)

    assert actor.rang == [(10, "fills it"), (10, "timer")]


async def test_what_is_past_rings_at_once(autojump_clock, nursery):
    actor = Timed()
    await nursery.start(actor.run)
    await trio.sleep(7)

    actor.timers.set_at("past", 3, "past")
    actor.timers.set("negative", -1, "negative")
    await wait_all_tasks_blocked()

    assert actor.rang == [(7, "past"), (7, "negative")]


async def test_a_restart_takes_the_timers_along(autojump_clock, nursery):
    made = []

    def make():
        made.append(Timed())
        return made[-1]

    async def fail(one):
        one.timers.set("rung already", 0, "x")
        await trio.sleep(1)
        raise ZeroDivisionError

    supervisor = Supervisor()
    await nursery.start(supervisor.run)
    ref = await supervisor.start_child(ChildSpec("timed", make))
    made[0].timers.set("t", 5, "of the first")
    ref.tell(fail)
    await trio.sleep(100)

    assert [one.rang for one in made] == [[], []]
    nursery.cancel_scope.cancel()


async def test_setting_again_and_again_keeps_the_heap_small(actor):
    for _ in range(10_000):
        actor.timers.set("idle", 300, "x")

    assert len(actor.timers._heap) <= 3 + SLACK_COUNT


async def test_all_timers_share_one_task(actor):
    await wait_all_tasks_blocked()
    before = trio.lowlevel.current_statistics().tasks_living

    for number in range(50):
        actor.timers.set(f"t{number}", 10 + number, "x")

    assert trio.lowlevel.current_statistics().tasks_living == before + 1


async def test_nonsense_is_refused(actor):
    with pytest.raises(ValueError, match="not a number"):
        actor.timers.set("t", float("nan"), "x")
    with pytest.raises(RuntimeError, match="on_start"):
        Timed().timers.set("t", 1, "x")


NAMES = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), NAMES, st.integers(0, 12)),
        st.tuples(st.just("cancel"), NAMES, st.just(0)),
        st.tuples(st.just("busy"), st.just(""), st.integers(1, 8)),
        st.tuples(st.just("wait"), st.just(""), st.integers(0, 8)),
    ),
    max_size=30,
)


@given(steps=STEPS)
@settings(max_examples=60)
def test_a_timer_is_handled_once_and_not_before_its_time_and_never_after_it_was_overruled(steps):
    run_virtual(lambda: _timers_keep_their_word(steps))


async def _timers_keep_their_word(steps):
    actor = Timed()
    due_at_s: dict[int, float] = {}
    live: dict[str, int] = {}
    overruled: list[int] = []
    async with trio.open_nursery() as nursery:
        ref = await nursery.start(actor.run)
        for number, (what, name, seconds) in enumerate(steps):
            await wait_all_tasks_blocked()
            handled = [message for _, message in actor.rang]
            if what in ("set", "cancel") and live.get(name, number) not in [*handled, number]:
                overruled.append(live.pop(name))
            if what == "set":
                actor.timers.set(name, seconds, number)
                live[name] = number
                due_at_s[number] = trio.current_time() + seconds
            elif what == "cancel":
                actor.timers.cancel(name)
                live.pop(name, None)
            elif what == "busy":
                ref.tell(_sleeping(seconds))
            else:
                await trio.sleep(seconds)
        await trio.sleep(1000)
        actor.stop()

    handled = [message for _, message in actor.rang]
    assert len(handled) == len(set(handled))
    assert not set(handled) & set(overruled)
    assert set(live.values()) <= set(handled)
    for at_s, message in actor.rang:
        assert at_s >= due_at_s[message]
        if not any(what == "busy" for what, _, _ in steps):
            assert at_s == due_at_s[message]


def _sleeping(seconds):
    async def sleep(actor):
        await trio.sleep(seconds)

    return sleep

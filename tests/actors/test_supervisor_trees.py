"""Supervisors under supervisors: escalation, coming back with all refs, order; and a property."""

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, settings
from trio.testing import wait_all_tasks_blocked

from actors import (
    Actor,
    ActorGone,
    ChildSpec,
    RestartLimit,
    RestartsExceeded,
    Supervisor,
    ask,
)
from actors.testing import Probe, run_virtual

ONE = RestartLimit(restarts_max=1, window_s=1000.0)
NEVER = RestartLimit(restarts_max=0, window_s=1.0)


class Worker(Actor):
    def __init__(self, name, starts):
        super().__init__(name)
        self.starts = starts

    async def on_start(self):
        self.starts.append(self.name)

    async def handle(self, message):
        if message == "fail":
            raise ZeroDivisionError(self.name)
        if message == "stop":
            self.stop()
        if message == "busy":
            await trio.sleep(1)
        if (token := self.reply_to()) is not None:
            token.answer(message)


def worker(name, starts, restart="transient", limit=NEVER):
    return ChildSpec(name, lambda: Worker(name, starts), restart, limit)


async def test_a_supervisor_that_gave_up_comes_back_with_every_ref(nursery):
    """The static child, the dynamic one and the one that failed: same refs, all started again."""
    starts = []
    inner = Supervisor("inner", children=[worker("a", starts), worker("b", starts)])
    outer = Supervisor("outer", children=[inner.as_child()])
    await nursery.start(outer.run)
    dynamic = await inner.start_child(worker("c", starts))
    refs = [inner.find("a"), inner.find("b"), dynamic]

    refs[1].tell("fail")
    await wait_all_tasks_blocked()

    assert starts == ["a", "b", "c", "a", "b", "c"]
    assert [inner.find(name) for name in "abc"] == refs
    assert [await ask(ref, "hello", within_s=1) for ref in refs] == ["hello"] * 3


async def test_a_supervisor_that_came_back_counts_anew(nursery):
    starts = []
    inner = Supervisor("inner", children=[worker("a", starts, limit=ONE), worker("b", starts)])
    outer = Supervisor("outer", children=[inner.as_child()])
    await nursery.start(outer.run)

    for _ in range(3):
        inner.find("a").tell("fail")
        await wait_all_tasks_blocked()

    # The second failure was too many and took b along; the third is a first one again.
    assert starts == ["a", "b", "a", "a", "b", "a"]


async def test_a_supervisor_cut_short_keeps_its_children_for_its_return(autojump_clock, nursery):
    starts = []
    inner = Supervisor("inner", children=[worker("a", starts)])
    cut = ChildSpec("inner", lambda: inner, stop_within_s=0.5)
    outer = Supervisor(
        "outer", strategy="one_for_all", children=[worker("x", starts, limit=ONE), cut]
    )
    await nursery.start(outer.run)
    ref = inner.find("a")
    ref.tell("busy")
    await wait_all_tasks_blocked()

    outer.find("x").tell("fail")
    await trio.sleep(10)

    assert starts == ["x", "a", "x", "a"]
    assert inner.find("a") is ref
    assert await ask(ref, "hello", within_s=1) == "hello"


async def test_a_supervisor_cut_short_in_the_middle_of_a_restart_keeps_them_too(
    autojump_clock, nursery
):
    """`b` failed and `c` is slow to end for it, when all of inner is to be restarted; `a` is
    cancelled with inner, which must not pass for an end of its own.
    """
    starts = []
    children = [worker("a", starts), worker("b", starts, limit=ONE), worker("c", starts)]
    inner = Supervisor("inner", strategy="rest_for_one", children=children)
    cut = ChildSpec("inner", lambda: inner, stop_within_s=0.5)
    x = worker("x", starts, limit=ONE)
    outer = Supervisor("outer", strategy="one_for_all", children=[x, cut])
    await nursery.start(outer.run)
    refs = [inner.find(name) for name in "abc"]
    refs[2].tell("busy")
    await wait_all_tasks_blocked()

    refs[1].tell("fail")
    outer.find("x").tell("fail")
    await trio.sleep(10)

    assert starts == ["x", "a", "b", "c"] * 2
    assert [inner.find(name) for name in "abc"] == refs


async def test_escalation_goes_all_the_way_up():
    starts = []
    inner = Supervisor("inner", children=[worker("a", starts)])
    limit = RestartLimit(restarts_max=2, window_s=10)
    outer = Supervisor("outer", children=[inner.as_child(limit=limit)])
    ref = inner.find("a")

    async def fail():
        for _ in range(3):
            await wait_all_tasks_blocked()
            ref.tell("fail")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        with pytest.raises(RestartsExceeded) as caught:
            await outer.run()

    raised = caught.value
    assert raised.name == "inner"
    assert raised.__cause__.name == "a"
    assert isinstance(raised.__cause__.__cause__, ZeroDivisionError)
    assert starts == ["a"] * 3
    assert ref.is_gone


async def test_a_supervisor_made_anew_leaves_no_ref_of_the_old_one_open(nursery):
    """Then the children are new ones, and whoever holds the old refs is told so."""
    starts, made = [], []

    def make():
        made.append(Supervisor("inner", children=[worker("a", starts)]))
        return made[-1]

    outer = Supervisor("outer", children=[ChildSpec("inner", make)])
    await nursery.start(outer.run)
    probe = Probe()
    old = made[0].find("a")
    made[0].watch("a", probe.ref, lambda failure: failure.type)

    old.tell("fail")
    await wait_all_tasks_blocked()

    assert old.is_gone
    assert await probe.next() == "ZeroDivisionError"
    assert await ask(made[1].find("a"), "hello", within_s=1) == "hello"
    with pytest.raises(ActorGone):
        made[0].start_soon(worker("b", starts))


async def test_names_are_unique_in_the_whole_tree(nursery):
    starts = []
    left = Supervisor("left", children=[worker("same", starts)])
    right = Supervisor("right")
    outer = Supervisor("outer", children=[left.as_child(), right.as_child()])
    await nursery.start(outer.run)

    with pytest.raises(ValueError, match="'same'"):
        right.start_soon(worker("same", starts))

    assert right.names == ()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fail", "stop", "ask", "busy", "add", "stop_soon", "wait"]),
        st.sampled_from("abcde"),
    ),
    max_size=25,
)
STRATEGIES = st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"])


@given(strategy=STRATEGIES, steps=STEPS)
@settings(max_examples=60)
def test_whatever_happens_nobody_hangs_and_every_ref_works_or_says_it_is_gone(strategy, steps):
    run_virtual(lambda: _tree_keeps_its_word(strategy, steps))


async def _tree_keeps_its_word(strategy, steps):
    """Children that may fail as often as they like, under any strategy, poked at random."""
    starts, outcomes = [], []
    ample = RestartLimit(restarts_max=100, window_s=1)
    supervisor = Supervisor(
        "tree",
        strategy=strategy,
        children=[worker(name, starts, "permanent", ample) for name in "abc"],
    )
    refs = {name: supervisor.find(name) for name in "abc"}
    stopped: list[str] = []

    async def asker(ref):
        try:
            outcomes.append(await ask(ref, "hello", within_s=1e6))
        except ActorGone:
            outcomes.append("gone")

    asked_count = 0
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        for what, name in steps:
            ref = refs.get(name)
            if what == "wait":
                await trio.sleep(0.5)
            elif what == "add" and (ref is None or ref.is_gone):
                refs[name] = supervisor.start_soon(worker(name, starts, "permanent", ample))
            elif ref is None or ref.is_gone or what == "add":
                continue
            elif what == "stop_soon":
                supervisor.stop_soon(name)
                stopped.append(name)
            elif what == "ask":
                asked_count += 1
                nursery.start_soon(asker, ref)
            else:
                ref.tell(what)
        await trio.sleep(1000)

        assert len(outcomes) == asked_count
        assert set(outcomes) <= {"hello", "gone"}
        assert supervisor.names == tuple(n for n in supervisor.names if not refs[n].is_gone)
        for name, ref in refs.items():
            assert ref.is_gone == (name not in supervisor.names)
            assert not ref.is_gone or name in stopped
            if not ref.is_gone:
                assert await ask(ref, "still", within_s=1) == "still"
        nursery.cancel_scope.cancel()
    assert all(ref.is_gone for ref in refs.values())

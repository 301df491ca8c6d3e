"""The bound on every test, and the probe."""

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, settings

from actors import ActorGone, ask
from actors.testing import VIRTUAL_MAX_S, Probe, run_bounded, run_virtual


def test_a_deadlock_in_virtual_time_is_an_error():
    with pytest.raises(trio.TooSlowError):
        run_virtual(trio.sleep_forever)


def test_a_long_virtual_run_is_none():
    async def week():
        await trio.sleep(VIRTUAL_MAX_S - 1)
        return "done"

    assert run_virtual(week) == "done"


async def test_every_async_test_is_bounded(request):
    """The first mark decides; pytest-trio's own has no bound."""
    runs = [mark.kwargs.get("run") for mark in request.node.iter_markers("trio")]

    assert runs[0] is run_bounded


@given(number=st.integers())
@settings(max_examples=2)
async def test_what_hypothesis_runs_is_bounded_too(number):
    assert trio.current_effective_deadline() < float("inf")


async def test_a_probe_reads(autojump_clock):
    probe = Probe()
    probe.ref.tell("a")
    probe.ref.tell("b")
    probe.ref.tell("c")

    assert await probe.next() == "a"
    assert probe.drain() == ["b", "c"]
    with pytest.raises(trio.TooSlowError):
        await probe.next(within_s=5)
    assert trio.current_time() == 5


async def test_a_probe_answers(nursery):
    probe = Probe()
    answers = []

    async def asker():
        answers.append(await ask(probe.ref, "q", within_s=60))

    nursery.start_soon(asker)
    message, token = await probe.next_asked()
    token.answer(message + "!")
    await probe.settle()

    assert answers == ["q!"]


async def test_a_probe_can_go():
    probe = Probe("p")
    assert repr(probe) == "<Probe p: 0 waiting>"

    probe.close()

    with pytest.raises(ActorGone):
        probe.ref.tell("x")

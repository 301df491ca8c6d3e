"""What can be watched, and the trace that keeps it."""

import trio
from trio.testing import wait_all_tasks_blocked

from actors import Actor, ChildSpec, Observer, Observers, Trace, open_system


class Worker(Actor):
    async def handle(self, message):
        if message == 0:
            raise ZeroDivisionError("no")
        await trio.sleep(message)


async def test_a_trace_reads_like_what_happened(autojump_clock):
    trace = Trace()
    async with open_system([ChildSpec("w", lambda: Worker("w"))], observer=trace) as system:
        ref = system.ref("w")
        ref.tell(2)
        ref.tell(1.5)
        await trio.sleep(10)
        ref.tell(0)
        await wait_all_tasks_blocked()

    assert trace.lines("w") == [
        "       0.000 s  w  started",
        "       2.000 s  w  handled int (1 waiting, took 2000.0 ms)",
        "       3.500 s  w  handled float (took 1500.0 ms)",
        "      10.000 s  w  handled int",
        "      10.000 s  w  failed: ZeroDivisionError: no",
        "      10.000 s  w  restarts (1 in its window)",
        "      10.000 s  w  started (incarnation 2)",
        "      10.000 s  w  exited",
        "      10.000 s  w  gone",
    ]
    assert str(trace).splitlines() == list(trace)


async def test_a_trace_keeps_the_last_lines_only():
    trace = Trace(lines_max=2)

    for name in "abc":
        trace.gone(name)

    assert trace.steps() == ["b gone", "c gone"]
    assert trace.steps("c") == ["c gone"]
    trace.clear()
    assert trace.lines() == []


async def test_several_observers_see_the_same():
    one, two = Trace(), Trace()
    floors = [ChildSpec("w", lambda: Worker("w"))]
    async with open_system(floors, observer=Observers(one, two, Observer())) as system:
        for number in (0.001, 0):
            system.ref("w").tell(number)
        await wait_all_tasks_blocked(0.01)

    assert one.steps() == two.steps()
    assert "w gone" in one.steps()

"""Children that are restarted together, and the order in which they start."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import (
    Actor,
    ChildSpec,
    RestartLimit,
    Supervisor,
)


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


@pytest.mark.parametrize(
    ("strategy", "again"),
    [
        ("one_for_one", ["b down", "b starts", "b ready"]),
        ("rest_for_one", ["b down", "c down", "b starts", "b ready", "c starts", "c ready"]),
        (
            "one_for_all",
            ["b down", "c down", "a down"]
            + [f"{name} {what}" for name in "abc" for what in ("starts", "ready")],
        ),
    ],
)
async def test_whom_a_failure_takes_along(strategy, again, autojump_clock, nursery):
    log = []
    supervisor = Supervisor(
        strategy=strategy, children=[spec(name, log, start_s=1) for name in "abc"]
    )
    await nursery.start(supervisor.run)
    refs = [supervisor.find(name) for name in "abc"]
    log.clear()

    refs[1].tell("fail")
    await trio.sleep(60)

    assert log == again
    assert [supervisor.find(name) for name in "abc"] == refs


async def test_a_failure_while_others_start_again_begins_anew(autojump_clock, nursery):
    """One for all: b fails in its own start during the restart, so all start once more."""
    log = []
    broken = [False, True, False]

    class Moody(Worker):
        async def on_start(self):
            await super().on_start()
            if broken and broken.pop(0):
                raise ZeroDivisionError

    children = [
        spec("a", log, start_s=1),
        ChildSpec("b", lambda: Moody("b", log, start_s=1)),
        spec("c", log, start_s=1),
    ]
    supervisor = Supervisor(strategy="one_for_all", children=children)
    await nursery.start(supervisor.run)
    log.clear()
    supervisor.find("c").tell("fail")
    await trio.sleep(60)

    starts = [line for line in log if line.endswith("starts")]
    assert starts == [f"{name} starts" for name in ("a", "b", "a", "b", "c")]
    assert log[-1] == "c ready"


async def test_a_temporary_sibling_does_not_come_back(autojump_clock, nursery):
    log = []
    children = [spec("a", log), spec("b", log, "temporary")]
    supervisor = Supervisor(strategy="one_for_all", children=children)
    await nursery.start(supervisor.run)

    supervisor.find("a").tell("fail")
    await trio.sleep(1)

    assert supervisor.names == ("a",)
    assert (log.count("a starts"), log.count("b starts")) == (2, 1)


async def test_two_failures_at_once_are_one_restart_of_the_group(supervisor, nursery):
    log = []
    group = Supervisor("group", strategy="one_for_all", children=[spec("a", log), spec("b", log)])
    await nursery.start(group.run)

    group.find("a").tell("fail")
    group.find("b").tell("fail")
    await wait_all_tasks_blocked()

    assert log.count("a ready") == log.count("b ready") == 2


async def test_a_restart_of_some_does_not_forget_who_was_never_started(autojump_clock, nursery):
    """Rest for one: `d` fails while `a` is starting and `b` waits for it. `e` ends slowly.

    Nobody in the queue overtakes, and the supervisor is ready only when all have started.
    """
    log = []
    group = Supervisor(
        strategy="rest_for_one", children=[spec("a", log, start_s=2), spec("b", log)]
    )

    async def disturb():
        d = group.start_soon(spec("d", log))
        group.start_soon(spec("e", log, stop_s=5))
        await trio.sleep(1)
        d.tell("fail")

    nursery.start_soon(group.run)
    await wait_all_tasks_blocked()
    nursery.start_soon(disturb)
    await trio.sleep(1.5)
    log.clear()
    await trio.sleep(60)

    assert log == ["a ready", "e down"] + [
        f"{name} {what}" for name in "bde" for what in ("starts", "ready")
    ]


async def test_a_supervisor_is_ready_when_all_are_restarts_included(autojump_clock, nursery):
    log = []
    children = [spec("a", log, start_s=2), spec("b", log)]
    group = Supervisor(strategy="rest_for_one", children=children)

    async def disturb():
        await wait_all_tasks_blocked()
        d = group.start_soon(spec("d", log))
        group.start_soon(spec("e", log, stop_s=5))
        await trio.sleep(1)
        d.tell("fail")

    nursery.start_soon(disturb)
    await nursery.start(group.run)

    assert trio.current_time() == 6
    assert "b ready" in log


async def test_who_waits_for_its_turn_can_be_taken_out(autojump_clock, nursery):
    log = []
    group = Supervisor(children=[spec("a", log, start_s=5), spec("b", log), spec("c", log)])

    async def take_out():
        await wait_all_tasks_blocked()
        group.stop_soon("b")

    nursery.start_soon(take_out)
    await nursery.start(group.run)

    assert log == ["a starts", "a ready", "c starts", "c ready"]


async def test_a_temporary_child_that_fails_in_its_start_holds_up_nobody(nursery):
    log = []

    def broken():
        raise ZeroDivisionError

    group = Supervisor(children=[ChildSpec("a", broken, "temporary"), spec("b", log)])
    await nursery.start(group.run)

    assert log == ["b starts", "b ready"]
    assert group.names == ("b",)


async def test_dynamic_children_take_part_in_a_group_restart(supervisor, nursery):
    log = []
    group = Supervisor("group", strategy="one_for_all", children=[spec("a", log)])
    await nursery.start(group.run)
    late = await group.start_child(spec("late", log))

    group.find("a").tell("fail")
    await wait_all_tasks_blocked()

    assert log[-4:] == ["a starts", "a ready", "late starts", "late ready"]
    assert not late.is_gone

"""Supervision: order, restarts, limits, strategies, and refs that survive."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import (
    Actor,
    ActorGone,
    ChildSpec,
    MailboxFull,
    RestartLimit,
    RestartsExceeded,
    Supervisor,
    ask,
)
from actors.body import STOP


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


async def test_children_start_in_order_and_stop_in_reverse(autojump_clock, nursery):
    log = []
    children = [spec("a", log, start_s=5, stop_s=1), spec("b", log, start_s=2), spec("c", log)]
    supervisor = Supervisor(children=children)

    await nursery.start(supervisor.run)

    assert trio.current_time() == 7
    assert log == ["a starts", "a ready", "b starts", "b ready", "c starts", "c ready"]
    log.clear()
    supervisor.ref.mailbox.put_system(STOP)  # as a supervisor's own supervisor does
    await trio.sleep(10)
    assert log == ["c down", "b down", "a down"]
    assert supervisor.names == ()


async def test_the_ref_survives_restarts_of_its_actor(supervisor):
    log = []
    ref = await supervisor.start_child(spec("a", log))
    first = await ask(ref, "who", within_s=1)

    ref.tell("fail")
    await wait_all_tasks_blocked()
    second = await ask(ref, "who", within_s=1)

    assert second is not first
    assert supervisor.find("a") is ref
    assert second.ref is ref


async def test_a_restart_drops_what_waited_and_takes_what_comes_then(autojump_clock, nursery):
    """Queued before the failure: lost. Told while it restarts: handled by the next incarnation."""
    log = []
    supervisor = Supervisor()
    await nursery.start(supervisor.run)
    ref = await supervisor.start_child(spec("a", log, start_s=10, stop_s=10))
    log.clear()

    ref.tell("fail")
    ref.tell("before")
    await trio.sleep(5)
    assert log == []
    ref.tell("while the old one ends")
    await trio.sleep(10)
    ref.tell("while the new one starts")
    await trio.sleep(20)

    assert log == [
        "a down",
        "a starts",
        "a ready",
        "a got while the old one ends",
        "a got while the new one starts",
    ]


async def test_start_soon_gives_a_ref_at_once(supervisor):
    log = []

    ref = supervisor.start_soon(spec("a", log))
    ref.tell("early")
    assert log == []
    await wait_all_tasks_blocked()

    assert log == ["a starts", "a ready", "a got early"]


async def test_start_child_waits_until_ready_be_it_after_restarts(autojump_clock, nursery):
    attempts = []

    class Late(Actor):
        async def on_start(self):
            attempts.append(trio.current_time())
            await trio.sleep(1)
            if len(attempts) < 3:
                raise ZeroDivisionError

    supervisor = Supervisor()
    await nursery.start(supervisor.run)

    await supervisor.start_child(ChildSpec("late", lambda: Late("late")))

    assert attempts == [0, 1, 2]
    assert trio.current_time() == 3


async def test_a_child_that_never_gets_ready_is_reported(supervisor):
    class Never(Actor):
        async def on_start(self):
            raise ZeroDivisionError("bad day")

    with pytest.raises(ActorGone, match="bad day"):
        await supervisor.start_child(ChildSpec("n", lambda: Never("n"), "temporary"))


async def test_the_actor_says_how_much_its_mailbox_takes(supervisor):
    class Small(Actor):
        def __init__(self):
            super().__init__("small", capacity=1)

        async def handle(self, message):
            pass

    ref = await supervisor.start_child(ChildSpec("small", Small))
    ref.tell("a")

    with pytest.raises(MailboxFull):
        ref.tell("b")


async def test_a_make_that_raises_counts_as_a_failure():
    supervisor = Supervisor(children=[ChildSpec("a", lambda: 1 / 0, limit=RestartLimit(2, 10))])

    with pytest.raises(RestartsExceeded) as caught:
        await supervisor.run()

    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("restart", "end", "starts"),
    [
        ("permanent", "fail", 2),
        ("permanent", "stop", 2),
        ("transient", "fail", 2),
        ("transient", "stop", 1),
        ("temporary", "fail", 1),
        ("temporary", "stop", 1),
    ],
)
async def test_who_is_restarted(restart, end, starts, supervisor):
    log = []
    ref = await supervisor.start_child(spec("a", log, restart))

    ref.tell(end)
    await wait_all_tasks_blocked()

    assert log.count("a starts") == starts
    assert ref.is_gone == (starts == 1)
    assert supervisor.names == (("a",) if starts == 2 else ())


async def test_too_many_restarts_escalate_and_take_the_others_down_in_order():
    log = []
    limit = RestartLimit(restarts_max=2, window_s=10)
    children = [spec("a", log), spec("b", log, limit=limit), spec("c", log)]
    supervisor = Supervisor(children=children)
    a, b = supervisor.find("a"), supervisor.find("b")

    async def fail():
        for _ in range(3):
            await wait_all_tasks_blocked()
            b.tell("fail")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        with pytest.raises(RestartsExceeded) as caught:
            await supervisor.run()

    raised = caught.value
    assert (raised.name, raised.restarts_max, raised.window_s) == ("b", 2, 10)
    assert isinstance(raised.__cause__, ZeroDivisionError)
    assert log.count("b starts") == 3
    assert log[-2:] == ["c down", "a down"]
    assert a.is_gone
    assert b.is_gone


async def test_failures_far_enough_apart_do_not_escalate(autojump_clock, nursery):
    log = []
    supervisor = Supervisor()
    await nursery.start(supervisor.run)
    ref = await supervisor.start_child(spec("a", log, limit=RestartLimit(1, 10)))

    for _ in range(5):
        ref.tell("fail")
        await trio.sleep(10)

    assert log.count("a ready") == 6


async def test_a_supervisor_takes_no_messages(supervisor):
    with pytest.raises(MailboxFull):
        supervisor.ref.tell("x")


async def test_cancelling_a_supervisor_cancels_its_children_and_closes_their_refs():
    log = []
    supervisor = Supervisor(children=[spec("a", log)])
    ref = supervisor.find("a")

    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        nursery.cancel_scope.cancel()

    assert log[-1] == "a down"
    assert ref.is_gone
    with pytest.raises(ActorGone):
        supervisor.start_soon(spec("b", log))


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ValueError, match="some_for_some"):
        Supervisor(strategy="some_for_some")

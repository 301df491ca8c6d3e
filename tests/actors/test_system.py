"""A whole system: opening, finding, floors, and an orderly end however the block is left."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import (
    Actor,
    ActorGone,
    ChildSpec,
    RestartLimit,
    RestartsExceeded,
    Supervisor,
    ask,
    open_system,
)


class Worker(Actor):
    def __init__(self, name, log, start_s=0.0):
        super().__init__(name)
        self.log = log
        self.start_s = start_s

    async def on_start(self):
        await trio.sleep(self.start_s)
        self.spawn(self._until_the_end)

    async def handle(self, message):
        match message:
            case "fail":
                raise ZeroDivisionError
            case "hang":
                await trio.sleep_forever()
        self.reply_to().answer(self.name)

    async def _until_the_end(self):
        try:
            await trio.sleep_forever()
        finally:
            self.log.append(self.name)


def spec(name, log, limit=None, start_s=0.0):
    return ChildSpec(name, lambda: Worker(name, log, start_s), limit=limit or RestartLimit())


async def test_the_block_begins_when_all_floors_are_ready_and_ends_them_in_reverse(
    autojump_clock,
):
    log = []
    upper = Supervisor("upper", children=[spec("c", log, start_s=3), spec("d", log)])
    floors = [spec("a", log, start_s=4), spec("b", log), upper.as_child()]
    async with open_system(floors) as system:
        assert trio.current_time() == 7
        assert system.names == ("a", "b", "upper", "c", "d")
        assert log == []

    assert log == ["d", "c", "b", "a"]
    assert system.names == ()


async def test_refs_are_found_by_name_at_any_depth():
    log = []
    async with open_system() as system:
        floor = await system.open_floor("floor", children=[spec("a", log)])
        b = await floor.start_child(spec("b", log))

        assert system.find("b") is system.ref("b") is b
        assert await ask(system.ref("a"), "who", within_s=1) == "a"
        await floor.stop_child("b")
        assert system.find("b") is None
        with pytest.raises(ActorGone):
            system.ref("b")


async def test_floors_opened_later_stop_earlier():
    log = []
    async with open_system() as system:
        await system.open_floor("low", children=[spec("a", log)])
        await system.open_floor("high", children=[spec("b", log)])
        await system.start_child(spec("top", log))

    assert log == ["top", "b", "a"]


async def test_an_exception_in_the_block_comes_out_as_it_is_after_an_orderly_end():
    log = []
    with pytest.raises(KeyError):
        async with open_system([spec("a", log), spec("b", log)]):
            raise KeyError

    assert log == ["b", "a"]


async def test_cancelling_the_block_still_ends_in_order(autojump_clock):
    log = []
    with trio.move_on_after(5) as scope:
        async with open_system([spec("a", log), spec("b", log)]):
            await trio.sleep_forever()

    assert scope.cancelled_caught
    assert log == ["b", "a"]


async def test_cancelling_the_block_cuts_no_message_short(autojump_clock):
    handled_at_s = []

    class Careful(Actor):
        async def handle(self, message):
            await trio.sleep(4)
            handled_at_s.append(trio.current_time())

    with trio.move_on_after(1):
        async with open_system([ChildSpec("c", lambda: Careful("c"))]) as system:
            system.ref("c").tell("x")
            await trio.sleep_forever()

    assert handled_at_s == [4]


async def test_an_end_takes_no_longer_than_allowed(autojump_clock):
    class Stubborn(Actor):
        stop_within_s = 1e6

        async def handle(self, message):
            await trio.sleep_forever()

    async def live():
        floors = [ChildSpec("s", lambda: Stubborn("s"))]
        async with open_system(floors, stop_within_s=20) as system:
            system.ref("s").tell("x")
            await trio.sleep(10)

    await live()
    assert trio.current_time() == 30
    with trio.move_on_after(5):
        await live()
    assert trio.current_time() == 55


async def test_a_root_that_gives_up_cancels_the_block_and_says_why(autojump_clock):
    log = []
    never = RestartLimit(restarts_max=0, window_s=1)

    async def live():
        async with open_system([spec("a", log), spec("b", log, never)]) as system:
            system.ref("b").tell("fail")
            await trio.sleep_forever()

    with pytest.raises(RestartsExceeded, match="b ended again"):
        await live()

    assert trio.current_time() == 0
    assert log == ["b", "a"]


async def test_a_floor_that_gives_up_is_started_again(autojump_clock):
    log = []
    never = RestartLimit(restarts_max=0, window_s=1)
    async with open_system() as system:
        floor = await system.open_floor("floor", children=[spec("a", log, never)])
        ref = floor.find("a")
        ref.tell("fail")
        await wait_all_tasks_blocked()

        assert await ask(ref, "who", within_s=1) == "a"
        assert system.find("a") is ref


async def test_a_floor_that_cannot_start_fails_the_opening():
    class Broken(Actor):
        async def on_start(self):
            raise ZeroDivisionError

    with pytest.raises(RestartsExceeded):
        async with open_system([ChildSpec("b", lambda: Broken("b"))]):
            pytest.fail("the block must not begin")


async def test_when_both_fail_both_are_said():
    log = []
    never = RestartLimit(restarts_max=0, window_s=1)

    async def live():
        async with open_system([spec("a", log, never)]) as system:
            system.ref("a").tell("fail")
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("block")

    with pytest.raises(ExceptionGroup) as caught:
        await live()

    assert [type(one) for one in caught.value.exceptions] == [RestartsExceeded, KeyError]


async def test_two_systems_know_nothing_of_each_other():
    async with open_system([spec("same", [])]) as one, open_system([spec("same", [])]) as two:
        assert one.ref("same") is not two.ref("same")

"""Mailboxes and refs: bounds, lanes, order, what cancelling and closing do."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import ActorGone, MailboxFull, Ref
from actors.mailbox import Mailbox


async def test_messages_come_in_the_order_told():
    mailbox = Mailbox("m")
    ref = Ref("m", mailbox)

    for number in range(3):
        ref.tell(number)

    assert [await mailbox.next() for _ in range(3)] == [0, 1, 2]


async def test_a_full_mailbox_refuses_with_its_figures_and_keeps_what_it_had():
    mailbox = Mailbox("m", capacity=2)
    ref = Ref("m", mailbox)
    ref.tell("a")
    ref.tell("b")

    with pytest.raises(MailboxFull, match="2 messages") as caught:
        ref.tell("c")

    assert (caught.value.name, caught.value.capacity) == ("m", 2)
    assert mailbox.drain() == ["a", "b"]


async def test_the_system_lane_is_read_first():
    mailbox = Mailbox("m")
    mailbox.put("user")
    mailbox.put_system("system")

    assert [await mailbox.next(), await mailbox.next()] == ["system", "user"]


async def test_what_must_not_be_lost_goes_past_the_bound():
    mailbox = Mailbox("m", capacity=1)
    mailbox.put("a")

    mailbox.put_past_bound("b")

    assert mailbox.drain() == ["a", "b"]


async def test_a_waiting_reader_is_woken(nursery):
    mailbox = Mailbox("m")
    got = []

    async def read():
        got.append(await mailbox.next())

    nursery.start_soon(read)
    await wait_all_tasks_blocked()
    mailbox.put("x")
    await wait_all_tasks_blocked()

    assert got == ["x"]


async def test_a_cancelled_read_loses_nothing():
    mailbox = Mailbox("m")
    mailbox.put("x")

    with trio.CancelScope() as scope:
        scope.cancel()
        await mailbox.next()

    assert scope.cancelled_caught
    assert mailbox.drain() == ["x"]


async def test_a_cancelled_wait_leaves_room_for_the_next_reader(autojump_clock):
    mailbox = Mailbox("m")
    with trio.move_on_after(1):
        await mailbox.next()

    mailbox.put("x")

    assert await mailbox.next() == "x"


async def test_two_readers_are_refused(nursery):
    mailbox = Mailbox("m")
    nursery.start_soon(mailbox.next)
    await wait_all_tasks_blocked()

    with pytest.raises(trio.BusyResourceError):
        await mailbox.next()

    mailbox.put("let the first go")


async def test_a_busy_reader_lets_other_tasks_run():
    """Reading what waits already is a checkpoint: a flood must not stop the world."""
    mailbox = Mailbox("m")
    turns = []

    async def other():
        for _ in range(3):
            turns.append("other")
            await trio.lowlevel.checkpoint()

    for _ in range(10):
        mailbox.put("x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(10):
            await mailbox.next()
            turns.append("read")

    assert turns.index("other") < turns.index("read", 1)
    assert turns[-1] == "read"


async def test_a_closed_mailbox_takes_nothing_and_its_ref_says_so():
    mailbox = Mailbox("m", capacity=5)
    ref = Ref("m", mailbox)
    ref.tell("x")
    assert repr(ref) == "<Ref m: 1/5 waiting>"

    mailbox.close()
    mailbox.put_past_bound("a")
    mailbox.put_system("b")

    with pytest.raises(ActorGone) as caught:
        ref.tell("y")
    assert caught.value.name == "m"
    assert (ref.is_gone, ref.waiting_count, repr(ref)) == (True, 0, "<Ref m: gone>")


def test_refs_are_equal_only_to_themselves():
    mailbox = Mailbox("m")

    assert Ref("m", mailbox) != Ref("m", mailbox)

"""Broadcast: everybody reads the same, nobody waits for a slow one."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import Lagged, Topic


async def _read_into(seen, subscription):
    with subscription:
        async for value in subscription:
            seen.append(value)


async def test_every_subscriber_reads_all_in_order(nursery):
    topic = Topic("t")
    first, second = [], []
    nursery.start_soon(_read_into, first, topic.subscribe())
    nursery.start_soon(_read_into, second, topic.subscribe())

    for value in range(3):
        topic.publish(value)
    topic.close()
    await wait_all_tasks_blocked()

    assert first == second == [0, 1, 2]
    assert topic.subscribers_count == 0


async def test_a_subscription_begins_when_it_is_made():
    topic = Topic("t")
    topic.publish("before")
    subscription = topic.subscribe()
    topic.publish("after")

    assert await subscription.take() == ["after"]


async def test_a_slow_subscriber_is_dropped_and_told_and_others_read_on():
    topic = Topic("t")
    slow, quick = topic.subscribe(capacity=2), topic.subscribe(capacity=10)

    for value in range(3):
        topic.publish(value)

    with pytest.raises(Lagged, match="more than 2 values"):
        await slow.take()
    with pytest.raises(Lagged):
        await anext(slow)
    assert (slow.is_lost, slow.waiting_count, topic.lost_count) == (True, 0, 1)
    assert topic.subscribers_count == 1
    assert await quick.take() == [0, 1, 2]


async def test_as_many_as_it_may_hold_is_not_lagging():
    topic = Topic("t")
    subscription = topic.subscribe(capacity=2)

    topic.publish("a")
    topic.publish("b")

    assert await anext(subscription) == "a"
    topic.publish("c")
    assert await subscription.take() == ["b", "c"]


async def test_take_waits_for_a_value(autojump_clock, nursery):
    topic = Topic("t")
    subscription = topic.subscribe()

    async def publish():
        await trio.sleep(5)
        topic.publish("x")
        topic.publish("y")

    nursery.start_soon(publish)

    assert await subscription.take() == ["x", "y"]
    assert trio.current_time() == 5


async def test_leaving_the_block_leaves_the_topic():
    topic = Topic("t")
    with topic.subscribe():
        assert topic.subscribers_count == 1

    assert topic.subscribers_count == 0
    topic.publish("x")


async def test_closing_ends_a_reader_that_waits(nursery):
    topic = Topic("t")
    subscription = topic.subscribe()
    ended = []

    async def read():
        with pytest.raises(StopAsyncIteration):
            await anext(subscription)
        ended.append(True)

    nursery.start_soon(read)
    await wait_all_tasks_blocked()
    topic.close()
    await wait_all_tasks_blocked()

    assert ended == [True]


async def test_a_closed_topic_gives_subscriptions_that_end_at_once():
    topic = Topic("t")
    topic.close()
    topic.publish("nobody hears this")

    assert [value async for value in topic.subscribe()] == []
    assert await topic.subscribe().take() == []


async def test_a_cancelled_read_loses_nothing():
    topic = Topic("t")
    subscription = topic.subscribe()
    topic.publish("x")

    with trio.CancelScope() as scope:
        scope.cancel()
        await anext(subscription)

    assert subscription.waiting_count == 1

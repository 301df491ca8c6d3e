"""A wire inside one process: in order, slow, deaf, stuck and cut as it is told to be."""

from __future__ import annotations

import pytest
import trio

from capyctl.link.channel import ChannelClosed
from capyctl.link.memory_channel import QUEUE_COUNT_MAX, open_wire


async def test_messages_take_their_time_and_never_overtake(autojump_clock):
    wire = open_wire()
    wire.delay(5.0)
    await wire.here.send(b"1")
    wire.delay(0.0)
    await wire.here.send(b"2")
    began_s = trio.current_time()

    assert [await wire.there.receive(), await wire.there.receive()] == [b"1", b"2"]
    assert trio.current_time() - began_s == pytest.approx(5.0)


async def test_what_was_sent_before_a_close_still_comes(autojump_clock):
    wire = open_wire()
    await wire.here.send(b"last")
    await wire.here.aclose("done")

    assert await wire.there.receive() == b"last"
    with pytest.raises(ChannelClosed, match="done"):
        await wire.there.receive()
    with pytest.raises(ChannelClosed):
        await wire.there.send(b"late")


async def test_a_cut_loses_what_is_on_its_way_and_tells_both(autojump_clock):
    wire = open_wire()
    await wire.here.send(b"lost")
    wire.cut()

    for end in (wire.here, wire.there):
        with pytest.raises(ChannelClosed, match="reset"):
            await end.receive()
        with pytest.raises(ChannelClosed, match="reset"):
            await end.send(b"x")


async def test_a_half_open_wire_tells_nobody(autojump_clock):
    wire = open_wire()
    wire.half_open(0)
    for _ in range(2 * QUEUE_COUNT_MAX):
        await wire.here.send(b"lost")
    await wire.here.aclose("nobody hears this")
    await wire.there.send(b"nor this")

    with trio.move_on_after(1000) as waiting:
        await wire.there.receive()
    assert waiting.cancelled_caught


async def test_a_stuck_wire_delivers_later(autojump_clock):
    wire = open_wire()
    wire.stick(True)
    await wire.here.send(b"1")
    with trio.move_on_after(100) as waiting:
        await wire.there.receive()
    wire.stick(False)

    assert waiting.cancelled_caught
    assert await wire.there.receive() == b"1"


async def test_a_sender_waits_for_a_reader(autojump_clock):
    wire = open_wire()
    sent = 0
    with trio.move_on_after(1):
        while True:
            await wire.here.send(b"x")
            sent += 1

    assert sent == QUEUE_COUNT_MAX

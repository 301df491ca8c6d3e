"""One connection: what it sends first, what it does not put up with, and why it ends."""

from __future__ import annotations

import json

import pytest
import trio

from capyctl.contracts.hosts import HostFailed
from capyctl.link.memory_channel import open_wire
from capyctl.link.session import Session
from capyctl.wire.link import (
    FRAME_BYTES_MAX,
    Ack,
    Call,
    FrameTooLarge,
    Refused,
    Watch,
    read_server_frame,
    write_frame,
)
from tests.link.fakes import HOST, order
from tests.link.rig import open_rig
from tests.link.test_reconnecting import Asked

ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


async def kinds(channel, count: int) -> list[str]:
    return [read_server_frame(await channel.receive()).kind for _ in range(count)]


async def talk(body, *, wire=None):
    """A session that runs ``body``; the far end of its wire, and where its reason will be."""
    wire = wire or open_wire()
    session = Session(wire.here, read_server_frame)
    return wire.there, await session.converse(body)


async def test_a_beat_goes_before_what_waits_but_not_before_the_greeting(autojump_clock):
    far = open_wire()

    async def body(session):
        session.post(Refused(code="greeting", message=""))
        session.post_beat(Watch(number=1, launches=[]))
        await trio.sleep(1)
        for _ in range(3):
            session.post(Ack(id=ID))
        session.post_beat(Watch(number=2, launches=[]))
        session.post_beat(Watch(number=3, launches=[]))
        await trio.sleep(1)

    _, why = await talk(body, wire=far)

    assert await kinds(far.there, 6) == ["refused", "watch", "watch", "ack", "ack", "ack"]
    assert why == "ended"


async def test_a_peer_that_does_not_read_ends_the_session(autojump_clock):
    sent = 0

    async def body(session):
        nonlocal sent
        while True:
            session.post(Call(id=ID, method="m", params={"x": "y" * 100_000}))
            sent += 1
            await trio.sleep(0.01)

    _, why = await talk(body)

    assert why == "slow"
    assert 80 < sent < 200


async def test_a_last_word_goes_out_instead_of_what_waits(autojump_clock):
    far = open_wire()

    async def body(session):
        await trio.sleep(1)
        for _ in range(3):
            session.post(Ack(id=ID))
        session.post_last(Refused(code="c", message="m"), "sent away")
        session.post(Ack(id=ID))
        await trio.sleep_forever()

    _, why = await talk(body, wire=far)

    assert why == "sent away"
    assert await kinds(far.there, 1) == ["refused"]


async def test_a_last_word_that_nobody_takes_holds_nothing_up(autojump_clock):
    far = open_wire()
    began_s = trio.current_time()

    async def body(session):
        for _ in range(200):
            session.post(Ack(id=ID))
        await trio.sleep(1)
        session.post_last(Refused(code="c", message="m"), "sent away")
        await trio.sleep_forever()

    _, why = await talk(body, wire=far)

    assert why == "sent away"
    assert trio.current_time() - began_s <= 5


async def test_silence_ends_it(autojump_clock):
    async def body(session):
        await session.listen(lambda frame: None, silent_s=5.0)

    began_s = trio.current_time()
    _, why = await talk(body)

    assert why == "silent"
    assert trio.current_time() - began_s == pytest.approx(5.0)


async def test_the_first_reason_counts(autojump_clock):
    async def body(session):
        session.close("first")
        session.close("second")
        await trio.sleep_forever()

    assert (await talk(body))[1] == "first"


async def test_a_frame_that_is_too_large_is_not_sent(autojump_clock):
    async def body(session):
        with pytest.raises(FrameTooLarge):
            session.post(Call(id=ID, method="m", params={"x": "y" * FRAME_BYTES_MAX}))
        session.post(Ack(id=ID))
        await trio.sleep(1)

    far, _ = await talk(body)

    assert await kinds(far, 1) == ["ack"]


# -- what a live session does not put up with ---------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"no json", "bad_frame: it is not one JSON value"),
        (b'{"kind":"telepathy"}', "bad_frame: the frame: union_tag_invalid"),
        (write_frame(Ack(id=ID)), "bad_frame: the frame: union_tag_invalid"),
        (b'{"kind":"synced","running":{},"calls":[]}', "bad_frame: synced out of place"),
        (b'{"kind":"published","publication":{}}', "bad_frame: no HostPublication"),
    ],
    ids=["json", "kind", "direction", "place", "value"],
)
async def test_a_server_closes_on_what_makes_no_sense_and_goes_on(data, why, autojump_clock):
    async with open_rig() as rig:
        await rig.wire.here.send(data)
        await rig.live(2)

        ended = [fields["why"] for event, fields in rig.logged if event == "host_session_ended"]
        assert len(ended) == 1
        assert ended[0].startswith(why)


@pytest.mark.parametrize(
    "data",
    [
        b"no json",
        b'{"kind":"sync","launches":[],"calls":[]}',
    ],
    ids=["json", "place"],
)
async def test_a_host_closes_on_what_makes_no_sense_and_dials_again(data, autojump_clock):
    async with open_rig() as rig:
        await rig.wire.there.send(data)
        await rig.live(2)

        assert rig.changes[1].startswith("bad_frame")


@pytest.mark.parametrize(
    ("method", "params", "type"),
    [("sing", {}, "unsupported"), ("run", {"record": 1}, "failed")],
)
async def test_a_call_that_the_host_does_not_understand_is_answered(
    method, params, type, autojump_clock
):
    """Closing would bring it again."""
    async with open_rig() as rig:
        data = json.dumps({"kind": "call", "id": ID, "method": method, "params": params}).encode()
        heard = []
        rig.remote.calls.take = heard.append
        await rig.wire.there.send(data)
        await trio.sleep(1)

        assert [frame.type for frame in heard] == [type]
        assert rig.events.names == ["online fresh supported"]


async def test_an_answer_that_makes_no_sense_fails_its_call_alone(autojump_clock):
    async with open_rig() as rig:
        rig.machine.takes_s["prepare"] = 5.0
        asked = Asked(rig.nursery, rig.remote.prepare, order())
        await trio.sleep(1)
        (id,) = rig.remote.calls.open_ids
        data = json.dumps({"kind": "result", "id": id, "value": {"launch": 5}}).encode()
        await rig.wire.here.send(data)
        await asked.ended.wait()
        await trio.sleep(10)

        assert isinstance(asked.problem, HostFailed)
        assert rig.events.names == ["online fresh supported"]


async def test_a_host_that_is_another_one_is_refused(autojump_clock):
    async with open_rig(started=False) as rig:
        rig.directory.records.clear()
        rig.start_host()
        await trio.sleep(5)

        assert rig.events.names == []
        assert rig.changes == [f"this server knows no host {HOST}"]


@pytest.mark.slow
async def test_answers_that_wait_are_bounded_and_the_cheap_ones_are_asked_for_again(
    autojump_clock,
):
    async with open_rig() as rig:
        record = await rig.remote.prepare(order())
        rig.machine.log = "x" * 200_000 + "\n"
        rig.wire.half_open(0)
        asked = [
            Asked(rig.nursery, rig.remote.log_tail, record, bytes_max=1 << 20) for _ in range(60)
        ]
        await trio.sleep(2)
        assert rig.service.kept_bytes <= 4 * 1024 * 1024
        for one in asked:
            await one.ended.wait()

        assert all(one.problem is None for one in asked)
        assert {one.value for one in asked} == {(rig.machine.log, False)}
        assert rig.machine.calls["log_tail", record.launch] > 60


@pytest.mark.slow
async def test_more_calls_than_a_host_takes_at_once_wait_their_turn(autojump_clock):
    async with open_rig() as rig:
        rig.machine.takes_s["measure"] = 10.0
        asked = [
            Asked(rig.nursery, rig.remote.measure, f"/m{number}", weights_file=None)
            for number in range(2100)
        ]
        await trio.sleep(5)
        assert len(rig.remote.calls.open_ids) == 2048
        for one in asked:
            await one.ended.wait()

        assert all(one.problem is None for one in asked)
        assert rig.events.names == ["online fresh supported"]

"""The event stream: where it starts, what it says, how long it lasts, and how it ends."""

from __future__ import annotations

import pytest
import trio

from tests.api.clients import running, until_quiet
from tests.api.fake_management import INCARNATION, FakeManagement

OTHER = "01M5E0M1C4VQT1DXDZNMJ75NRP"
HEARTBEAT = b": heartbeat\n\n"


def with_events(count):
    fake = FakeManagement()
    for number in range(count):
        fake.emit("ready_committed", number=str(number))
    return fake


def ids(frames):
    return [
        int(line.rpartition(b":")[2]) for line in frames.split(b"\n") if line.startswith(b"id: ")
    ]


def after(seq, incarnation=INCARNATION):
    return f"after={incarnation}:{seq}".encode()


async def test_a_frame_is_as_printed(autojump_clock):
    fake = FakeManagement()
    fake.emit(
        "ready_committed",
        deployment="01M5E0MPXN61STKHGZ6BTEFVM3",
        operation="01M5E0PW0GTNAZM76H039K3YFY",
        transition="ready",
        instance=0,
    )
    async with running(fake) as client:
        call = client.start("GET", "/events")
        chunk = await call.next_chunk()

    assert call.status == 200
    assert call.answer.values(b"content-type") == [b"text/event-stream"]
    assert call.answer.values(b"cache-control") == [b"no-store"]
    assert chunk == (
        b"id: 01M5E0M1C4VQT1DXDZNMJ75NRN:1\n"
        b"event: ready_committed\n"
        b'data: {"api_version":"1","deployment_id":"01M5E0MPXN61STKHGZ6BTEFVM3",'
        b'"operation_id":"01M5E0PW0GTNAZM76H039K3YFY",'
        b'"payload":{"instance":0,"transition":"ready"},"recorded_at_ms":"1792545616717"}\n\n'
    )


async def test_a_page_is_one_chunk_and_pages_follow_without_a_gap(autojump_clock):
    async with running(with_events(150)) as client:
        call = client.start("GET", "/events")
        chunks = [await call.next_chunk() for _ in range(3)]

    assert [len(ids(chunk)) for chunk in chunks] == [64, 64, 22]
    assert ids(b"".join(chunks)) == [*range(1, 151)]


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        (after(7), []),
        (b"", [(b"last-event-id", f"{INCARNATION}:7".encode())]),
        (after(7), [(b"last-event-id", f"{INCARNATION}:7".encode())]),
        (after(7).replace(b":", b"%3A"), []),
    ],
)
async def test_a_stream_goes_on_after_its_cursor(query, headers, autojump_clock):
    fake = with_events(9)
    async with running(fake) as client:
        call = client.start("GET", "/events", query=query, headers=headers)
        past = await call.next_chunk()
        fake.emit("parked_committed")
        fresh = await call.next_chunk()

    assert ids(past) == [8, 9]
    assert ids(fresh) == [10]


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        (after(10), []),
        (after(8), [(b"last-event-id", f"{INCARNATION}:7".encode())]),
        (b"", [(b"last-event-id", f"{INCARNATION}:7".encode())] * 2),
        (b"", [(b"last-event-id", b"")]),
        (after(7) + b"&" + after(7), []),
        (after(7) + b"&x=1", []),
        (b"before=1", []),
        (b"after", []),
        (b"after=", []),
        (after(7) + b"%", []),
        (after("07"), []),
        (after("+7"), []),
        (after(-1), []),
        (after(2**63), []),
        (after(7, INCARNATION.lower()), []),
        (after(7, INCARNATION[:-1]), []),
        (b"after=7", []),
    ],
)
async def test_bad_cursors_are_400(query, headers, autojump_clock):
    fake = with_events(9)
    async with running(fake) as client:
        answer = await client.ask("GET", "/events", query=query, headers=headers)

    assert (answer.status, answer.code) == (400, "invalid_cursor")
    assert not fake.calls


@pytest.mark.parametrize("query", [after(3), after(7, OTHER), after(99, OTHER)])
async def test_cursors_that_cannot_be_gone_on_from_are_410(query, autojump_clock):
    fake = with_events(9)
    fake.forget_before(6)
    async with running(fake) as client:
        answer = await client.ask("GET", "/events", query=query)
        floor = client.start("GET", "/events", query=after(5))
        chunk = await floor.next_chunk()

    assert (answer.status, answer.code) == (410, "cursor_expired")
    assert answer.json()["error"]["details"] == {"resnapshot_required": True}
    assert answer.json()["error"]["retryable"] is False
    assert ids(chunk) == [6, 7, 8, 9]


async def test_a_point_is_found_too_old_at_the_first_read_at_the_latest(autojump_clock):
    """Retention may overtake a stream between its subscription and its first page."""
    fake = with_events(9)
    held = fake.hold("next_page")
    async with running(fake) as client:
        call = client.start("GET", "/events", query=after(3))
        await held.wait_arrived(1)
        fake.forget_before(6)
        held.open()
        await call.answered.wait()

    assert (call.answer.status, call.answer.code) == (410, "cursor_expired")
    assert fake.subscriptions[0].is_closed


async def test_without_a_cursor_nothing_is_read_before_the_headers(autojump_clock):
    fake = with_events(3)
    fake.hold("next_page")
    async with running(fake) as client:
        call = client.start("GET", "/events")
        await call.begun.wait()

    assert call.status == 200


async def test_heartbeats_come_after_fifteen_seconds_of_nothing(autojump_clock):
    fake = with_events(0)
    async with running(fake) as client:
        call = client.start("GET", "/events")
        began_s = trio.current_time()
        first = (await call.next_chunk(), trio.current_time() - began_s)
        second = (await call.next_chunk(), trio.current_time() - began_s)
        await trio.sleep(10)
        fake.emit("ready_committed")
        frame = await call.next_chunk()
        third = (await call.next_chunk(), trio.current_time() - began_s)

    assert first == (HEARTBEAT, pytest.approx(15))
    assert second == (HEARTBEAT, pytest.approx(30))
    assert ids(frame) == [1]
    assert third == (HEARTBEAT, pytest.approx(55))


async def test_a_stream_lasts_five_minutes_and_ends_without_a_word(autojump_clock):
    fake = with_events(1)
    async with running(fake) as client:
        call = client.start("GET", "/events", query=after(0))
        await call.answered.wait()
        took_s = trio.current_time()
        past_its_end = client.start("GET", "/events", query=after(0))
        await past_its_end.next_chunk()

    assert took_s == pytest.approx(300, abs=0.01)
    assert call.chunks[1:] == [HEARTBEAT] * 19
    assert fake.subscriptions[0].is_closed


async def test_a_busy_stream_ends_after_five_minutes_too(autojump_clock):
    fake = with_events(0)
    async with running(fake) as client:
        call = client.start("GET", "/events")
        with trio.move_on_after(400):
            while not call.answered.is_set():
                await trio.sleep(1)
                fake.emit("ready_committed")
        ended_at_s = trio.current_time()

    assert ended_at_s == pytest.approx(300, abs=2)
    assert ids(call.answer.body) == [*range(1, len(ids(call.answer.body)) + 1)]


async def test_the_seventeenth_stream_is_refused_until_one_has_gone(autojump_clock):
    fake = with_events(1)
    async with running(fake) as client:
        calls = [client.start("GET", "/events") for _ in range(16)]
        for call in calls:
            await call.next_chunk()
        refused = await client.ask("GET", "/events")
        calls[3].leave()
        await calls[3].answered.wait()
        accepted = client.start("GET", "/events")
        await accepted.next_chunk()
        again = await client.ask("GET", "/events")

    assert (refused.status, refused.code) == (429, "queue_full")
    assert refused.json()["error"]["retryable"] is True
    assert again.code == "queue_full"


async def test_a_refused_cursor_takes_no_stream(autojump_clock):
    fake = with_events(9)
    fake.forget_before(9)
    async with running(fake, streams_max=1) as client:
        for _ in range(3):
            assert (await client.ask("GET", "/events", query=after(1))).status == 410
        call = client.start("GET", "/events")

        assert ids(await call.next_chunk()) == [9]


async def test_a_stream_holds_its_slot_until_its_first_read_has_ended(autojump_clock):
    fake = with_events(1)
    held = fake.hold("subscribe")
    async with running(fake, streams_max=1) as client:
        call = client.start("GET", "/events")
        await held.wait_arrived(1)
        call.leave()
        await call.answered.wait()
        refused = await client.ask("GET", "/events")
        held.open()
        await until_quiet()
        accepted = client.start("GET", "/events")
        await accepted.next_chunk()

    assert refused.code == "queue_full"
    assert fake.subscriptions[0].is_closed


async def test_a_first_read_that_takes_long_is_504(autojump_clock):
    fake = with_events(1)
    fake.hold("subscribe")
    async with running(fake) as client:
        answer = await client.ask("GET", "/events")

    assert (answer.status, answer.code) == (504, "deadline_exceeded")


async def test_streams_take_turns_reading_the_past_and_reads_go_on(autojump_clock):
    fake = with_events(1)
    held = fake.hold("subscribe")
    async with running(fake) as client:
        calls = [client.start("GET", "/events") for _ in range(6)]
        await until_quiet()
        at_once = held.waiting_count
        snapshot = await client.ask("GET", "/snapshot")
        held.open()
        for call in calls:
            await call.next_chunk()

    assert at_once == 4
    assert snapshot.status == 200


async def test_a_stream_whose_client_left_does_not_take_its_turn(autojump_clock):
    fake = with_events(1)
    held = fake.hold("subscribe")
    async with running(fake) as client:
        calls = [client.start("GET", "/events") for _ in range(6)]
        await until_quiet()
        for call in calls:
            call.leave()
            await call.answered.wait()
        held.open()
        await until_quiet()

    assert fake.calls["subscribe"] == 4


async def test_a_stream_overtaken_by_retention_says_so_and_ends(autojump_clock):
    fake = with_events(100)
    async with running(fake) as client:
        call = client.start("GET", "/events")
        held = fake.hold("next_page")
        await call.next_chunk()
        await held.wait_arrived(1)
        fake.forget_before(90)
        held.open()
        last = await call.next_chunk()
        await call.answered.wait()

    assert last == (
        b"event: management_stream_error\n"
        b'data: {"api_version":"1","error":{"code":"cursor_expired",'
        b'"resnapshot_required":true,"retryable":false}}\n\n'
    )
    assert call.chunks == []


async def test_a_stream_that_cannot_read_says_so_and_ends(autojump_clock, caplog):
    fake = with_events(1)
    async with running(fake) as client:
        call = client.start("GET", "/events")
        await call.next_chunk()
        fake.broken_reads = True
        fake.emit("ready_committed")
        last = await call.next_chunk()
        await call.answered.wait()

    assert b'"code":"internal","resnapshot_required":false,"retryable":false' in last
    assert b"disk" not in last
    assert "the disk is gone" in caplog.text


async def test_closing_ends_streams_as_if_their_time_was_over(autojump_clock):
    fake = with_events(1)
    async with running(fake) as client:
        calls = [client.start("GET", "/events") for _ in range(3)]
        for call in calls:
            await call.next_chunk()
        client.app.events.close()
        for call in calls:
            await call.answered.wait()
        ended_at_s = trio.current_time()

    assert ended_at_s < 1
    assert [call.chunks for call in calls] == [[]] * 3
    assert all(subscription.is_closed for subscription in fake.subscriptions)


async def test_a_client_that_leaves_ends_its_subscription(autojump_clock):
    fake = with_events(1)
    async with running(fake) as client:
        call = client.start("GET", "/events")
        await call.next_chunk()
        call.leave()
        await call.answered.wait()

        assert fake.subscriptions[0].is_closed


async def test_a_resumed_stream_has_no_gap_and_no_double(autojump_clock):
    fake = with_events(5)
    seen = []
    async with running(fake) as client:
        for _ in range(4):
            query = after(seen[-1]) if seen else b""
            call = client.start("GET", "/events", query=query)
            seen += ids(await call.next_chunk())
            call.leave()
            await call.answered.wait()
            for _ in range(10):
                fake.emit("ready_committed")

    assert seen == [*range(1, 36)]

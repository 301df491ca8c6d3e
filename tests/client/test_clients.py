"""What both clients do: requests as they are sent, answers, retries, and following events."""

from __future__ import annotations

import socket

import pytest

from capyctl.client import requests
from capyctl.client.errors import NotTheApi, RefusedByApi, Unanswered
from capyctl.client.judging import Pending
from capyctl.client.models import Event, Snapshot
from capyctl.client.requests import Change
from capyctl.client.retrying import Retries
from tests.client.scripted import (
    DROP,
    RECEIPT,
    TOKEN,
    Async,
    Blocking,
    Server,
    answer,
    deployment,
    frame,
    last_words,
    refusal,
    snapshot,
    stream,
)

CHANGE = Change(method="POST", path=requests.PREFIX + "/deployments", key="k 1", body=b'{"a":1}')
AT_ONCE = Retries(attempts_max=4, pause_s=0.0)
BUSY = refusal("queue_full", 429, retryable=True)


@pytest.fixture(params=[Blocking, Async], ids=["sync", "aio"])
def connect(request):
    return lambda server: request.param(server.port)


def test_a_read_is_sent_as_the_api_wants_it(connect):
    with Server(answer(200, snapshot(12))) as server:
        found = connect(server).snapshot()

    (received,) = server.received
    assert received.line == "GET /management/v1/snapshot HTTP/1.1"
    assert received.header("authorization") == f"Bearer {TOKEN}"
    assert received.header("host").startswith("127.0.0.1")
    assert received.header("content-type") is None
    assert found.cursor.endswith(":12")


def test_a_change_is_sent_as_the_api_wants_it(connect):
    with Server(answer(202, RECEIPT)) as server:
        receipt = connect(server).send_change(CHANGE)

    (received,) = server.received
    assert received.line == "POST /management/v1/deployments HTTP/1.1"
    assert received.header("idempotency-key") == "k 1"
    assert received.header("content-type") == "application/json"
    assert received.header("content-encoding") is None
    assert received.body == b'{"a":1}'
    assert (receipt.revision, receipt.joined) == (7, False)


@pytest.mark.parametrize(
    "lost",
    [
        DROP,
        BUSY,
        refusal("deadline_exceeded", 504, retryable=True),
        refusal("checkpoint_digest_pending", 503, retryable=True),
        answer(503, b"<html>"),
        answer(202, RECEIPT)[:-5],
    ],
    ids=["dropped", "busy", "slow", "pending", "proxy", "cut"],
)
def test_a_change_is_sent_again_with_its_key_and_bytes(connect, lost):
    with Server(lost, lost, answer(202, RECEIPT)) as server:
        connect(server).send_change(CHANGE, retries=AT_ONCE)

    first, second, third = server.received
    assert (first.body, first.header("idempotency-key")) == (b'{"a":1}', "k 1")
    assert first == second == third


@pytest.mark.parametrize(
    ("code", "status"), [("revision_conflict", 409), ("invalid_config", 400), ("internal", 500)]
)
def test_a_refusal_for_good_is_told_at_once(connect, code, status):
    with Server(refusal(code, status, details={"path": "x"})) as server:
        with pytest.raises(RefusedByApi) as refused:
            connect(server).send_change(CHANGE, retries=AT_ONCE)

    assert len(server.received) == 1
    assert (refused.value.code, refused.value.status) == (code, status)
    assert refused.value.details == {"path": "x"}
    assert refused.value.retryable is False


def test_attempts_are_bounded(connect):
    with Server(*[BUSY] * 9) as server:
        with pytest.raises(RefusedByApi, match="queue_full"):
            connect(server).send_change(CHANGE, retries=AT_ONCE)

    assert len(server.received) == 4


def test_only_named_codes_are_retried_where_codes_are_named(connect):
    pending = refusal("checkpoint_digest_pending", 503, retryable=True)
    retries = Retries(attempts_max=4, pause_s=0.0, codes=frozenset({"queue_full"}))
    with Server(BUSY, pending) as server:
        with pytest.raises(RefusedByApi, match="checkpoint_digest_pending"):
            connect(server).send_change(CHANGE, retries=retries)

    assert len(server.received) == 2


def test_pauses_double_up_to_a_bound():
    with Server(*[BUSY] * 5, answer(202, RECEIPT)) as server:
        client = Blocking(server.port)
        client.send_change(CHANGE, retries=Retries(pause_s=1.0, pause_s_max=5.0))

    assert client.slept == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_nobody_there_is_told_from_no_answer(connect):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        client = connect(type("Nobody", (), {"port": reserved.getsockname()[1]}))
        with pytest.raises(Unanswered) as absent:
            client.get("/x")
        with Server(DROP) as server:
            with pytest.raises(Unanswered) as lost:
                connect(server).get("/x")

    assert (absent.value.sent, lost.value.sent) == (False, True)


@pytest.mark.parametrize(
    ("said", "part"),
    [
        (answer(200, b"<html>"), "not JSON"),
        (answer(200, b"[1]"), "not JSON"),
        (answer(404, b"<html>"), "does something else listen there"),
        (answer(200, {"deployments": []}), "KeyError"),
        (answer(200, {**snapshot(1), "deployments": [{"id": "d"}]}), "KeyError"),
    ],
    ids=["page", "list", "refusing-page", "no-cursor", "no-name"],
)
def test_what_is_not_the_api_is_told(connect, said, part):
    with Server(said) as server:
        with pytest.raises(NotTheApi, match=part):
            connect(server).snapshot()


def test_an_answer_that_stalls_is_given_up(connect):
    with Server(answer(200, b"{}")[:-1]) as server:
        with pytest.raises(Unanswered):
            connect(server).get("/x", within_s=0.3)


def test_unknown_fields_are_kept_and_no_matter(connect):
    with Server(answer(200, snapshot(1, deployment()))) as server:
        found = connect(server).snapshot()

    one = found.find("my-model")
    assert found.raw["a_field_of_tomorrow"] == {"x": [1]}
    assert one.raw["a_field_of_tomorrow"] is True
    assert one.timeouts == {
        "request_deadline_ms": 1_800_000,
        "initialize_ms": 610_000,
        "stop_ms": 900_000,
    }


def test_following_begins_with_a_snapshot_and_goes_on_from_its_cursor(connect):
    with Server(answer(200, snapshot(12)), stream(frame(13), frame(14))) as server:
        told = connect(server).follow_until(3)

    assert isinstance(told[0], Snapshot)
    assert [event.cursor[-2:] for event in told[1:]] == ["13", "14"]
    assert server.received[1].line.endswith("/events?after=01M5E0M1C4VQT1DXDZNMJ75NRN:12 HTTP/1.1")


@pytest.mark.parametrize("cut", [False, True], ids=["ended", "broken-off"])
def test_following_goes_on_from_the_last_id(connect, cut):
    with Server(
        stream(frame(13), b": heartbeat\n\n", frame(14), cut=cut), stream(frame(15))
    ) as server:
        told = connect(server).follow_until(3, after="01M5E0M1C4VQT1DXDZNMJ75NRN:12")

    assert [event.cursor[-2:] for event in told] == ["13", "14", "15"]
    assert server.received[1].line.endswith(":14 HTTP/1.1")


@pytest.mark.parametrize(
    "lost",
    [
        refusal("cursor_expired", 410, details={"resnapshot_required": True}),
        stream(last_words("cursor_expired", resnapshot=True)),
    ],
    ids=["refused", "on-the-stream"],
)
def test_following_reads_a_snapshot_when_its_point_is_gone(connect, lost):
    with Server(lost, answer(200, snapshot(90)), stream(frame(91))) as server:
        told = connect(server).follow_until(2, after="01M5E0M1C4VQT1DXDZNMJ75NRN:12")

    assert isinstance(told[0], Snapshot)
    assert told[1].cursor.endswith(":91")


def test_following_goes_on_when_a_stream_failed_without_a_loss(connect):
    with Server(
        stream(frame(13), last_words("internal", resnapshot=False)), stream(frame(14))
    ) as server:
        told = connect(server).follow_until(2, after="01M5E0M1C4VQT1DXDZNMJ75NRN:12")

    assert [type(one) for one in told] == [Event, Event]
    assert server.received[1].line.endswith(":13 HTTP/1.1")


def test_following_waits_for_a_place_among_the_streams(connect):
    with Server(BUSY, stream(frame(13))) as server:
        (event,) = connect(server).follow_until(1, after="01M5E0M1C4VQT1DXDZNMJ75NRN:12")

    assert event.payload == {"instance": 0}
    assert event.recorded_at_ms == 1_792_545_616_717


def test_following_ends_where_it_is_refused_for_good(connect):
    with Server(refusal("unauthenticated", 401)) as server:
        with pytest.raises(RefusedByApi, match="unauthenticated"):
            connect(server).follow_until(1, after="01M5E0M1C4VQT1DXDZNMJ75NRN:12")


def test_waiting_looks_until_it_has_come_about(connect):
    rows = [snapshot(n, deployment(ready_instances=int(n > 2))) for n in (1, 2, 3)]

    def look(seen):
        one = seen.find("d")
        return one.name if one.is_ready else Pending("my-model")

    away = [BUSY, DROP, answer(502, b"<html>")]
    with Server(answer(200, rows[0]), *away, *(answer(200, r) for r in rows[1:])) as server:
        client = connect(server)
        found = client.wait_until(look, until_ms=client.client.wall_ms() + 60_000, every_s=0.0)

    assert found == "my-model"
    assert len(server.received) == 6

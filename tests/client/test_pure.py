"""The client's pure parts: retry rules, frames, changes, how far a start has come."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.client import requests
from capyctl.client.errors import (
    NotTheApi,
    RefusedByApi,
    StartFailed,
    Unanswered,
    Vanished,
)
from capyctl.client.frames import Frames
from capyctl.client.judging import Pending, started, stopped
from capyctl.client.models import Deployment, Receipt
from capyctl.client.retrying import CHANGES, Retries, covering, pause_before_next
from tests.client.scripted import RECEIPT, deployment, frame


def refused(code, *, retryable):
    return RefusedByApi(code, "because", status=503, retryable=retryable)


@pytest.mark.parametrize(
    ("problem", "again"),
    [
        (Unanswered("lost", sent=True), True),
        (Unanswered("absent", sent=False), True),
        (refused("queue_full", retryable=True), True),
        (refused("revision_conflict", retryable=False), False),
        (NotTheApi("page"), False),
        (NotTheApi("proxy", retryable=True), True),
        (Vanished("gone"), False),
    ],
)
def test_what_is_sent_again(problem, again):
    assert (pause_before_next(CHANGES, 0, problem) is not None) is again


def test_nobody_there_can_be_the_end_of_the_first_attempt_only():
    impatient = Retries(waits_for_role=False)
    absent = Unanswered("absent", sent=False)

    assert pause_before_next(impatient, 0, absent) is None
    assert pause_before_next(impatient, 1, absent) is not None
    assert pause_before_next(impatient, 0, Unanswered("lost", sent=True)) is not None


@given(attempt=st.integers(0, 10_000), attempts_max=st.integers(1, 100))
def test_pauses_and_attempts_are_bounded(attempt, attempts_max):
    retries = Retries(attempts_max=attempts_max)

    pause_s = pause_before_next(retries, attempt, Unanswered("lost", sent=True))

    assert (pause_s is None) is (attempt + 1 >= attempts_max)
    assert pause_s is None or 0 <= pause_s <= retries.pause_s_max


@pytest.mark.parametrize("window_ms", [30_000, 610_000, 1_800_000])
def test_covering_lasts_for_the_window(window_ms):
    retries = covering(window_ms)
    lost = Unanswered("lost", sent=True)

    pauses = [pause_before_next(retries, n, lost) for n in range(retries.attempts_max - 1)]

    assert window_ms <= sum(pauses) * 1000 <= window_ms + 40_000


@given(st.lists(st.integers(0, 400), max_size=6))
def test_frames_come_out_whole_however_the_bytes_come(cuts):
    whole = b": heartbeat\n\n" + frame(1) + b": heartbeat\n\n" + frame(2, "parked_committed")
    frames, found, last = Frames(), [], 0
    for cut in [*sorted(cuts), len(whole)]:
        found += frames.feed(whole[last:cut])
        last = max(last, cut)

    assert [(event.cursor[-2:], event.kind) for event in found] == [
        (":1", "ready_committed"),
        (":2", "parked_committed"),
    ]


@pytest.mark.parametrize("data", [b"data: x\n\n", b"data: [1]\n\n", b"x" * (1 << 21)])
def test_what_is_no_event_is_told(data):
    with pytest.raises(NotTheApi):
        Frames().feed(data)


def test_an_action_names_the_revision_and_its_window():
    one = Deployment.read(deployment())

    windows = {
        name: json.loads(requests.action(one, name, key="k", now_ms=1000).body)
        for name in ("start", "stop", "park", "preinitialize", "delete")
    }

    assert {name: body["deadline_ms"] - 1000 for name, body in windows.items()} == {
        "start": 610_000,
        "stop": 900_000,
        "park": 900_000,
        "preinitialize": 1_800_000,
        "delete": 900_000,
    }
    assert {body["expected_revision"] for body in windows.values()} == {3}
    assert all(
        body.keys() == {"action", "expected_revision", "deadline_ms"} for body in windows.values()
    )


def test_an_action_on_an_instance_and_one_that_evicts():
    one = Deployment.read(deployment())

    change = requests.action(one, "start", key="k", now_ms=0, instance=2, evict=True, within_ms=5)

    assert change.path == "/management/v1/deployments/d/instances/2/actions"
    assert json.loads(change.body) == {
        "action": "start",
        "expected_revision": 3,
        "deadline_ms": 5,
        "evict": True,
    }


def test_a_create_and_a_replace_have_the_bodies_of_the_page():
    document = {"name": "é", "engine": "vllm", "model": "m"}

    create = requests.create(document, key="k")
    replace = requests.replace(Deployment.read(deployment()), document, key="k")

    assert json.loads(create.body) == {"config": document, "activate": False}
    assert "é".encode() in create.body
    assert (replace.method, replace.path) == ("PUT", "/management/v1/deployments/d")
    assert json.loads(replace.body) == {"config": document, "expected_revision": 3}


def test_a_start_is_awaited_until_every_instance_serves():
    row = deployment(
        latest_operation={
            "id": "o",
            "kind": "initialize",
            "state": "pending",
            "reason": "needs 1 GiB",
        }
    )

    waiting = started(Deployment.read(row))

    assert waiting == Pending("my-model 0/1 ready, instance 0 stopped: needs 1 GiB")
    assert started(Deployment.read({**row, "ready_instances": 1})).is_ready


@pytest.mark.parametrize(
    "latest", [{"state": "failed"}, {"state": "cancelled"}, {"state": "pending", "given_up": True}]
)
def test_a_start_that_is_over_says_why(latest):
    row = {"id": "o", "kind": "initialize", "reason": "it broke", "hint": "Fix it.", **latest}

    with pytest.raises(
        StartFailed, match=r"my-model was not started: it broke\. Fix it\."
    ) as found:
        started(Deployment.read(deployment(latest_operation=row)))

    assert (found.value.reason, found.value.hint) == ("it broke", "Fix it.")


@pytest.mark.parametrize("judge", [started, stopped])
def test_a_deployment_that_is_gone_is_told(judge):
    with pytest.raises(Vanished):
        judge(None)


def test_a_stop_is_awaited_until_it_is_stopped():
    assert stopped(Deployment.read(deployment(observed_state="stopping"))) == Pending(
        "my-model is stopping"
    )
    assert stopped(Deployment.read(deployment())).observed_state == "stopped"


def test_a_receipt_of_each_kind():
    plain = Receipt.read(RECEIPT)
    instance = Receipt.read({**RECEIPT, "operation_id": None, "instance": 1})
    evicting = Receipt.read({**RECEIPT, "victims": ["d/0"], "switch_id": "s"})

    assert (plain.revision, plain.victims, plain.checkpoint_digest) == (7, (), None)
    assert instance.operation_id is None
    assert evicting.victims == ("d/0",)

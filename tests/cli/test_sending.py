"""Unanswered changes are sent again as they were; refused ones are not."""

import socket

import pytest

from tests.cli.fake_management import Bench, Says, receipt, refusal, snapshot

STOP = ("stop", "deployment", "my-model")


@pytest.mark.parametrize(
    "lost",
    [
        Says(drops=True),
        refusal("deadline_exceeded", 504, retryable=True),
        refusal("queue_full", 429, retryable=True),
    ],
    ids=["dropped", "too slow", "busy"],
)
def test_a_lost_answer_is_asked_for_again_with_the_same_key_and_bytes(management, bench, lost):
    management.answers = [lost, lost]

    ran = bench.run(*STOP)

    first, second, third = management.changes
    assert ran.status == 0
    assert first == second == third
    assert first.key == f"{ran.request_id}-action"
    assert bench.clock.slept == [1.0, 2.0]


def test_a_refusal_is_not_sent_again(management, bench):
    management.answers = [refusal("capacity_blocked", 503, retryable=True)]

    assert bench.run(*STOP).status == 4
    assert len(management.changes) == 1


def test_a_role_that_never_answers_is_given_up(management, bench):
    management.answers = [Says(drops=True)] * 9

    ran = bench.run(*STOP)

    assert ran.status == 13
    assert len(management.changes) == 4
    assert "did not answer: the connection broke off" in ran.errors[0]


def test_reads_wait_for_their_turn(management, bench):
    busy = refusal("queue_full", 429, retryable=True)
    management.snapshots = [busy, busy, snapshot()]

    assert bench.run("list", "deployments").status == 0
    assert bench.clock.slept == [0.1, 0.2]


def test_a_busy_read_is_given_up(management, bench):
    management.snapshots = [refusal("queue_full", 429, retryable=True)]

    ran = bench.run("list", "deployments")

    assert (ran.status, len(management.received)) == (2, 6)


def test_a_role_that_is_not_there_is_said_with_its_address(tmp_path):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        ran = Bench(tmp_path / "state", address).run("list", "deployments")

    (line,) = ran.errors
    assert ran.status == 13
    assert line.startswith(f"error [management_unavailable]: nothing answers at {address} (")
    assert "run/management-address" in line
    assert "`capyctl start standalone`" in line


def test_another_server_on_the_port_is_told_apart(management, bench):
    management.snapshots = [Says(200, b"<html>")]

    ran = bench.run("list", "deployments")

    assert (ran.status, ran.errors) == (
        13,
        ["error [internal]: the answer with status 200 is not JSON"],
    )


def test_a_page_of_an_other_server_is_no_refusal(management, bench):
    management.answers = [Says(404, b"<html>")]

    ran = bench.run(*STOP)

    assert ran.status == 13
    assert "status 404 without an error of the management API" in ran.errors[0]


def test_every_request_carries_the_admin_token(management, bench):
    management.answers = [Says(202, receipt())]
    bench.run(*STOP)

    assert management.seen_tokens == {"Bearer " + "t" * 43}

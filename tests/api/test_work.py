"""Changes that take long, clients that leave, and the slots that are held meanwhile."""

from __future__ import annotations

import pytest
import trio

from capyctl.domain.errors import Refused
from tests.api.clients import CONFIG, JSON, action_body, running, until_quiet
from tests.api.fake_management import NOW_MS, FakeManagement

ULID = "01M5E0MPXN61STKHGZ6BTEFVM3"
IDEMPOTENCY = (b"idempotency-key", b"key")
CREATE = {"config": CONFIG, "activate": False}
CHANGES = [
    ("POST", "/deployments", CREATE),
    ("PUT", f"/deployments/{ULID}", {"config": CONFIG, "expected_revision": 1}),
    ("POST", f"/deployments/{ULID}/actions", action_body("stop")),
    ("POST", f"/deployments/{ULID}/instances/0/actions", action_body("stop")),
]


async def created(client, **config):
    return (await client.create(**config)).json()["deployment_id"]


async def test_a_third_change_is_refused_and_reads_go_on(autojump_clock):
    fake = FakeManagement()
    held = fake.hold("create")
    async with running(fake) as client:
        for key in ("a", "b"):
            client.begin_change("POST", "/deployments", CREATE, key=key)
        await held.wait_arrived(2)

        for method, path, body in CHANGES:
            answer = await client.change(method, path, body, key="c")
            assert (answer.status, answer.code) == (429, "queue_full")
            assert answer.json()["error"]["retryable"] is True
        assert (await client.ask("GET", "/snapshot")).status == 200


async def test_the_slot_is_asked_for_after_the_headers_and_before_the_body(autojump_clock):
    fake = FakeManagement()
    held = fake.hold("create")
    async with running(fake) as client:
        for key in ("a", "b"):
            client.begin_change("POST", "/deployments", CREATE, key=key)
        await held.wait_arrived(2)
        without_key = await client.ask("POST", "/deployments", headers=[JSON], body=b"{")
        with_bad_body = await client.ask(
            "POST", "/deployments", headers=[JSON, IDEMPOTENCY], body=b"{"
        )

    assert without_key.code == "invalid_request"
    assert with_bad_body.code == "queue_full"


async def test_a_body_that_never_ends_is_504_after_five_seconds(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        began_s = trio.current_time()
        calls = [
            client.start("POST", "/deployments", headers=[JSON, IDEMPOTENCY], body=None)
            for _ in range(2)
        ]
        await until_quiet()
        meanwhile = await client.create()
        for call in calls:
            await call.begun.wait()
        took_s = trio.current_time() - began_s
        later = await client.create()

    assert meanwhile.code == "queue_full"
    assert took_s == pytest.approx(5.0)
    assert [call.answer.code for call in calls] == ["deadline_exceeded"] * 2
    assert later.status == 202


async def test_work_that_takes_long_is_504_and_found_under_its_key(autojump_clock):
    fake = FakeManagement()
    held = fake.hold("create")
    async with running(fake) as client:
        began_s = trio.current_time()
        late = await client.create()
        took_s = trio.current_time() - began_s
        retries = [client.begin_change("POST", "/deployments", CREATE, key="create")]
        await until_quiet()
        third = await client.create(key="third", name="third")
        held.open()
        await retries[0].answered.wait()

    assert (late.status, late.code) == (504, "deadline_exceeded")
    assert late.json()["error"]["retryable"] is True
    assert took_s == pytest.approx(15.0)
    assert third.code == "queue_full", "the timed-out work and the retry hold both slots"
    assert retries[0].answer.status == 202
    assert fake.calls["create"] == 1
    assert len(fake.operations) == 1


@pytest.mark.parametrize("stage", ["find_receipt", "create"])
async def test_a_client_that_leaves_keeps_its_slot_and_its_effect(stage, autojump_clock):
    fake = FakeManagement()
    held = fake.hold(stage)
    async with running(fake) as client:
        calls = [
            client.begin_change(
                "POST", "/deployments", {**CREATE, "config": {**CONFIG, "name": key}}, key=key
            )
            for key in ("a", "b")
        ]
        await held.wait_arrived(2)
        for call in calls:
            call.leave()
            await call.answered.wait()
        refused = await client.create()
        held.open()
        await until_quiet()
        again = await client.change(
            "POST", "/deployments", {**CREATE, "config": {**CONFIG, "name": "a"}}, key="a"
        )

    assert refused.code == "queue_full"
    assert len(fake.models) == 2
    assert again.status == 202


async def test_a_client_that_leaves_while_sending_frees_its_slot(autojump_clock):
    async with running() as client:
        for _ in range(3):
            call = client.start("POST", "/deployments", headers=[JSON, IDEMPOTENCY], body=None)
            await until_quiet()
            call.leave()
            await call.answered.wait()
        answer = await client.create()

    assert answer.status == 202


async def test_many_equal_requests_make_one_operation(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        calls = [client.begin_change("POST", "/deployments", CREATE) for _ in range(50)]
        for call in calls:
            await call.answered.wait()
        again = await client.change("POST", "/deployments", CREATE)

    accepted = [call.answer.body for call in calls if call.status == 202]
    assert len(accepted) == 2
    assert {*accepted, again.body} == {again.body}
    assert {call.status for call in calls} == {202, 429}
    assert fake.calls["create"] == 1


async def test_equal_requests_at_once_with_other_bodies_conflict(autojump_clock):
    fake = FakeManagement()
    held = fake.hold("create")
    async with running(fake) as client:
        first = client.begin_change("POST", "/deployments", CREATE)
        await held.wait_arrived(1)
        second = client.begin_change("POST", "/deployments", {**CREATE, "config": {"name": "x"}})
        await until_quiet()
        assert not second.answered.is_set()
        held.open()
        await second.answered.wait()

    assert first.answer.status == 202
    assert second.answer.code == "idempotency_conflict"


async def test_the_first_may_fail_and_the_next_under_its_key_goes_ahead(autojump_clock):
    fake = FakeManagement()
    held = fake.hold("create")
    fake.refusal = Refused("host_ineligible", "No host")
    async with running(fake) as client:
        calls = [client.begin_change("POST", "/deployments", CREATE) for _ in range(2)]
        await held.wait_arrived(1)
        held.open()
        for call in calls:
            await call.answered.wait()

    assert sorted(call.status for call in calls) == [202, 503]


async def test_four_evicting_starts_run_outside_of_the_two(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        ids = [await created(client, key=name, name=name) for name in "abcdef"]
        held = fake.hold("act")
        evicting = []
        for id in ids[:4]:
            evicting.append(client.begin_act(id, "start", key="e", evict=True))
            await held.wait_arrived(len(evicting))
        fifth = await client.act(ids[4], "start", key="e", evict=True)
        plain = [client.begin_act(id, "start", key="p") for id in ids[4:]]
        await held.wait_arrived(6)
        third = await client.act(ids[0], "stop", key="s")
        held.open()
        for call in (*evicting, *plain):
            await call.answered.wait()

    assert (fifth.status, fifth.code) == (429, "queue_full")
    assert third.code == "queue_full"
    assert [call.answer.status for call in (*evicting, *plain)] == [202] * 6


async def test_an_evicting_start_is_waited_for_until_its_deadline(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        id = await created(client)
        fake.hold("act")
        began_s = trio.current_time()
        late = await client.act(id, "start", key="e", evict=True)
        took_s = trio.current_time() - began_s
        fake.hold("act")
        began_s = trio.current_time()
        short = await client.act(id, "start", key="f", evict=True, deadline_ms=NOW_MS + 1)
        short_s = trio.current_time() - began_s

    assert late.code == short.code == "deadline_exceeded"
    assert took_s == pytest.approx(60.0)
    assert short_s == pytest.approx(15.0)


async def test_an_evicting_start_goes_on_without_its_client(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        id = await created(client)
        held = fake.hold("act")
        call = client.begin_act(id, "start", key="e", evict=True)
        await held.wait_arrived(1)
        call.leave()
        await call.answered.wait()
        held.open()
        await until_quiet()
        again = await client.act(id, "start", key="e", evict=True)

    assert fake.models[id].running == [True]
    assert again.json()["victims"] == []


async def test_a_change_that_breaks_is_500_and_frees_its_slot(autojump_clock, caplog):
    fake = FakeManagement()
    async with running(fake) as client:
        for _ in range(3):
            fake.refusal = RuntimeError("secret figures")
            answer = await client.create()
            assert (answer.status, answer.code) == (500, "internal")
            assert b"secret" not in answer.body
        assert (await client.create()).status == 202

"""Machines: reads of them, actions under keys, and invitations whose text is shown once."""

from __future__ import annotations

import json

import pytest

from tests.api.clients import JSON, running
from tests.api.fake_management import HOST_A, FakeManagement

DRAIN = {"action": "drain"}


async def post(client, path, body, *, key=b"key"):
    headers = [JSON, (b"idempotency-key", key)]
    return await client.ask("POST", path, headers=headers, body=json.dumps(body).encode())


async def test_every_machine_is_shown(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        answer = await client.ask("GET", "/hosts")

    assert answer.status == 200
    assert [host["name"] for host in answer.json()["hosts"]] == ["gpu-a", "gpu b/1"]


@pytest.mark.parametrize("segment", [HOST_A, "gpu-a"])
async def test_a_machine_by_id_or_name(segment, autojump_clock):
    async with running() as client:
        answer = await client.ask("GET", f"/hosts/{segment}")

    assert (answer.status, answer.json()["name"]) == (200, "gpu-a")


async def test_a_name_may_have_escapes(autojump_clock):
    async with running() as client:
        answer = await client.ask("GET", "/hosts/gpu%20b%2F1")

    assert (answer.status, answer.json()["name"]) == (200, "gpu b/1")


async def test_an_unknown_machine_is_404(autojump_clock):
    async with running() as client:
        shown = await client.ask("GET", "/hosts/nobody")
        changed = await post(client, "/hosts/nobody/actions", DRAIN)

    assert (shown.status, shown.code) == (404, "not_found")
    assert (changed.status, changed.code) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/hosts", b"x=1"),
        ("/hosts/gpu-a", b"x"),
        ("/hosts/%20", b""),
        ("/hosts/a%0Ab", b""),
        ("/hosts/a%2", b""),
        (f"/hosts/{'x' * 257}", b""),
    ],
)
async def test_bad_paths_and_queries_are_400(path, query, autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        answer = await client.ask("GET", path, query=query)

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert not fake.calls


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("HEAD", "/hosts"),
        ("POST", "/hosts"),
        ("HEAD", "/hosts/gpu-a"),
        ("DELETE", "/hosts/gpu-a"),
        ("GET", "/hosts/gpu-a/actions"),
        ("GET", "/invitations"),
        ("OPTIONS", "/invitations"),
    ],
)
async def test_other_methods_are_405(method, path, autojump_clock):
    async with running() as client:
        answer = await client.ask(method, path)

    assert answer.status == 405
    assert answer.values(b"allow")


@pytest.mark.parametrize("action", ["drain", "undrain", "revoke"])
async def test_an_action_is_202_with_its_receipt(action, autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        answer = await post(client, "/hosts/gpu-a/actions", {"action": action})

    assert answer.status == 202
    assert answer.json() == {"action": action, "api_version": "1", "host_id": HOST_A}
    assert fake.machines["gpu-a"]["state"] == action


async def test_the_same_key_gets_the_same_answer_and_one_effect(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        first = await post(client, "/hosts/gpu-a/actions", DRAIN)
        again = await post(client, "/hosts/gpu-a/actions", DRAIN)
        other = await post(client, "/hosts/gpu-a/actions", {"action": "revoke"})

    assert (again.status, again.body) == (202, first.body)
    assert (other.status, other.code) == (409, "idempotency_conflict")
    assert fake.calls["act_on_host"] == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/hosts/gpu-a/actions", {}),
        ("/hosts/gpu-a/actions", {"action": "stop"}),
        ("/hosts/gpu-a/actions", {"action": 1}),
        ("/hosts/gpu-a/actions", {"action": "drain", "deadline_ms": 1}),
        ("/invitations", {}),
        ("/invitations", {"name": ""}),
        ("/invitations", {"name": "  "}),
        ("/invitations", {"name": "a\nb"}),
        ("/invitations", {"name": "a" * 257}),
        ("/invitations", {"name": "a", "expires_in_ms": 999}),
        ("/invitations", {"name": "a", "expires_in_ms": 3_600_001}),
        ("/invitations", {"name": "a b/../c"}),
        ("/invitations", {"name": "-a"}),
        ("/invitations", {"name": "a" * 129}),
        ("/invitations", {"name": "a", "expires_in_ms": "1000"}),
        ("/invitations", {"name": "a", "recover": 1}),
        ("/invitations", {"name": "a", "host": "b"}),
    ],
)
async def test_bad_bodies_are_400_and_leave_nothing(path, body, autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        answer = await post(client, path, body)

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert not fake.receipts
    assert not fake.events


async def test_an_invitation_is_a_quarter_of_an_hour_and_shown_once(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        first = await post(client, "/invitations", {"name": "gpu-c"})
        again = await post(client, "/invitations", {"name": "gpu-c"})

    assert first.status == 202
    assert first.json() == {
        "document": "secret",
        "expires_at_ms": "900000",
        "host_name": "gpu-c",
        "recover": False,
    }
    assert again.json() == {"expires_at_ms": "900000", "host_name": "gpu-c"}
    assert fake.calls["invite"] == 1


async def test_changes_of_hosts_share_the_slots_of_all_changes(autojump_clock):
    fake = FakeManagement()
    held = fake.hold("act_on_host")
    async with running(fake) as client:
        for key, action in (("one", "drain"), ("other", "undrain")):
            client.begin_change("POST", "/hosts/gpu-a/actions", {"action": action}, key=key)
        await held.wait_arrived(2)
        third = await client.create()
        held.open()

    assert (third.status, third.code) == (429, "queue_full")

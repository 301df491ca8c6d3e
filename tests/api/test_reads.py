"""Snapshot, effective configuration, engine log, load: queries, slots, and what is hidden."""

from __future__ import annotations

import pytest
import trio

from capyctl.api.app import make_app
from tests.api.clients import TOKEN, Client, running, until_quiet
from tests.api.fake_management import FakeClock, FakeManagement

ULID = "01M5E0MPXN61STKHGZ6BTEFVM3"


async def created(client, **config):
    return (await client.create(**config)).json()["deployment_id"]


async def test_the_snapshot_is_passed_on_as_it_is(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        answer = await client.ask("GET", "/snapshot")

    assert answer.status == 200
    assert answer.body == await fake.snapshot()
    assert answer.values(b"content-length") == [str(len(answer.body)).encode()]


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/snapshot", b"x=1"),
        ("/snapshot", b"x"),
        ("/snapshot", b"&"),
        ("/model-sources", b"x=1"),
        ("/metrics/latency", b"x=1"),
        (f"/deployments/{ULID}/effective-config", b"x=1"),
        ("/metrics/load", b"x=1"),
        ("/metrics/load", b"deployment=my-model"),
        ("/metrics/load", b"deployment="),
        ("/metrics/load", b"deployment=" + ULID.lower().encode()),
        ("/metrics/load", b"deployment=%s&deployment=%s" % (ULID.encode(), ULID.encode())),
        (f"/deployments/{ULID}/engine-log", b"instance=x"),
        (f"/deployments/{ULID}/engine-log", b"instance="),
        (f"/deployments/{ULID}/engine-log", b"instance=-1"),
        (f"/deployments/{ULID}/engine-log", b"kib=0"),
        (f"/deployments/{ULID}/engine-log", b"kib=257"),
        (f"/deployments/{ULID}/engine-log", b"kib=1&kib=1"),
        (f"/deployments/{ULID}/engine-log", b"kib=1%"),
        (f"/deployments/{ULID}/engine-log", b"follow=1"),
        (f"/deployments/{'x' * 129}/engine-log", b""),
        ("/deployments/a%20b/engine-log", b""),
        ("/deployments/%20/effective-config", b""),
        (f"/deployments/{'x' * 257}/effective-config", b""),
        ("/deployments/a%0Ab/effective-config", b""),
        ("/deployments/a%ff/effective-config", b""),
        ("/deployments/a%2/effective-config", b""),
    ],
)
async def test_bad_paths_and_queries_are_400(path, query, autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        answer = await client.ask("GET", path, query=query)

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert not fake.calls


@pytest.mark.parametrize(
    ("call", "paths"),
    [
        ("snapshot", ["/snapshot", "/model-sources", "/deployments/my-model/effective-config"]),
        ("load", ["/metrics/load", "/metrics/latency"]),
        ("engine_log", [f"/deployments/{ULID}/engine-log"]),
    ],
)
async def test_a_third_read_is_refused_also_when_the_first_two_left(call, paths, autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        await client.create()
        held = fake.hold(call)
        calls = [client.start("GET", paths[0]) for _ in range(2)]
        await held.wait_arrived(2)
        refused = [await client.ask("GET", path) for path in paths]
        for begun in calls:
            begun.leave()
            await begun.answered.wait()
        still_refused = await client.ask("GET", paths[0])
        others = [
            (await client.ask("GET", path)).status
            for path in ("/snapshot", "/metrics/load")
            if path not in paths
        ]
        changed = await client.create(key="other", name="other")
        held.open()
        await until_quiet()
        after = await client.ask("GET", paths[0])

    assert [answer.code for answer in refused] == ["queue_full"] * len(paths)
    assert refused[0].json()["error"]["retryable"] is True
    assert still_refused.status == 429
    assert set(others) == {200}
    assert changed.status == 202
    assert after.status != 429


async def test_a_read_that_takes_long_is_504_and_keeps_its_slot(autojump_clock):
    fake = FakeManagement()
    held = fake.hold("snapshot")
    async with running(fake) as client:
        began_s = trio.current_time()
        calls = [client.start("GET", "/snapshot") for _ in range(2)]
        for call in calls:
            await call.answered.wait()
        took_s = trio.current_time() - began_s
        refused = await client.ask("GET", "/snapshot")
        held.open()
        await until_quiet()
        after = await client.ask("GET", "/snapshot")

    assert [call.answer.code for call in calls] == ["deadline_exceeded"] * 2
    assert took_s == pytest.approx(15.0)
    assert refused.code == "queue_full"
    assert after.status == 200


async def test_the_configuration_is_found_by_id_and_by_name_without_secrets(autojump_clock):
    fake = FakeManagement()
    fake.full_config = {
        "name": "my-model",
        "engine_config": {"extra_args": ["--api-key", "s3cret", "--hf-token=s3cret"]},
        "env": {"A": "s3cret"},
    }
    async with running(fake) as client:
        id = await created(client)
        by_id = await client.ask("GET", f"/deployments/{id}/effective-config")
        by_name = await client.ask("GET", "/deployments/my%2Dmodel/effective-config")
        unknown = await client.ask("GET", "/deployments/other/effective-config")

    assert by_id.body == by_name.body
    assert b"s3cret" not in by_id.body
    assert by_id.json()["revision"] == 1
    assert by_id.json()["effective"]["engine_config"]["extra_args"] == [
        "--api-key",
        "[redacted]",
        "--hf-token=[redacted]",
    ]
    assert unknown.code == "not_found"


async def test_the_engine_log_is_asked_for_with_its_defaults(autojump_clock):
    async with running() as client:
        id = await created(client)
        plain = await client.ask("GET", f"/deployments/{id}/engine-log")
        exact = await client.ask(
            "GET", f"/deployments/{id}/engine-log", query=b"kib=256&instance=3"
        )
        unknown = await client.ask("GET", "/deployments/my-model/engine-log")

    assert (plain.json()["instance"], plain.json()["kib"]) == (None, 64)
    assert (exact.json()["instance"], exact.json()["kib"]) == (3, 256)
    assert unknown.code == "not_found"


async def test_the_load_is_of_all_or_of_one(autojump_clock):
    async with running() as client:
        id = await created(client)
        every = await client.ask("GET", "/metrics/load")
        one = await client.ask("GET", "/metrics/load", query=b"deployment=" + id.encode())
        unknown = await client.ask("GET", "/metrics/load", query=b"deployment=" + ULID.encode())

    assert every.status == one.status == 200
    assert "api_version" not in every.json()
    assert unknown.code == "not_found"


async def test_sources_and_latency_without_anything_to_tell(autojump_clock):
    async with running() as client:
        sources = await client.ask("GET", "/model-sources")
        latency = await client.ask("GET", "/metrics/latency")

    assert sources.body == b'{"api_version":"1","referenced":[]}'
    assert latency.json() == {"api_version": "1", "phases": []}


async def test_sources_and_latency_are_what_the_application_was_given(autojump_clock):
    app = make_app(
        FakeManagement(),
        token=TOKEN,
        clock=FakeClock(),
        latency=lambda: {"api_version": "1", "phases": [{"phase": "queue"}]},
        model_sources=lambda: ["sources/huggingface/Owner--Name@0"],
    )
    async with trio.open_nursery() as nursery:
        app.nursery = nursery
        client = Client(app, nursery)
        sources = await client.ask("GET", "/model-sources")
        latency = await client.ask("GET", "/metrics/latency")
        nursery.cancel_scope.cancel()

    assert sources.json()["referenced"] == ["sources/huggingface/Owner--Name@0"]
    assert latency.json()["phases"] == [{"phase": "queue"}]

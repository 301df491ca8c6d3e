"""The clients against a real simulated daemon."""

from __future__ import annotations

import threading

import pytest

from capyctl.client import requests
from capyctl.client.aio import AsyncClient
from capyctl.client.errors import RefusedByApi, StartFailed, WaitedTooLong
from capyctl.client.judging import started
from capyctl.client.models import Event, Snapshot
from capyctl.client.sync import Client
from capyctl.simulated.checkpoint_writer import write_checkpoint
from tests.e2e.daemon import running, simulation

pytestmark = pytest.mark.slow
DIES = {"dies": {"faults": {"dies_while_loading": True}}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("client"), simulate=simulation(models=DIES)) as daemon:
        for name in ("small", "dies"):
            write_checkpoint(daemon.models / name, weights_bytes=64 << 20)
        yield daemon


@pytest.fixture
def client(daemon):
    return Client(host="127.0.0.1", port=daemon.management_port, token=daemon.token)


def document(name, model="small", **more):
    return {"name": name, "engine": "vllm", "model": model, **more}


def test_a_model_is_brought_up_and_taken_down(client, daemon):
    up = client.bring_up(document("whole"), run="1")
    again = client.bring_up(document("whole"), run="1")
    served = daemon.chat("whole").status
    client.take_down(up.id, run="1")

    assert up.is_ready
    assert (again.id, again.revision) == (up.id, 1)
    assert served == 200
    assert client.snapshot().find("whole") is None


def test_a_start_that_fails_says_why(client):
    with pytest.raises(StartFailed, match="the engine exited before readiness"):
        client.bring_up(document("dead", model="dies"), run="1")

    found = client.snapshot().find("dead")
    client.take_down(found.id, run="1")


def test_a_replace_names_the_revision_that_was_read(client):
    receipt = client.send_change(requests.create(document("revised"), key="revised"))
    before = client.snapshot().find(receipt.deployment_id)
    client.send_change(requests.replace(before, document("revised", instances=2), key="r1"))
    with pytest.raises(RefusedByApi) as refused:
        client.send_change(requests.replace(before, document("revised", instances=3), key="r2"))
    after = client.snapshot().find("revised")
    client.take_down(after.id, run="1")

    assert refused.value.code == "revision_conflict"
    assert (after.revision, after.desired_instances) == (2, 2)


def test_a_follower_hears_what_is_done_meanwhile(client):
    told = client.follow()
    first = next(told)
    worker = threading.Thread(
        target=client.bring_up, args=(document("heard"),), kwargs={"run": "1"}
    )
    worker.start()
    kinds = []
    while "ready_committed" not in kinds:
        event = next(told)
        assert isinstance(event, Event)
        kinds.append(event.kind)
    worker.join(30)
    client.take_down(client.snapshot().find("heard").id, run="1")

    assert isinstance(first, Snapshot)
    assert kinds[0] == "managed_configuration_accepted"


def test_waiting_is_bounded(client):
    receipt = client.send_change(requests.create(document("idle"), key="idle"))
    with pytest.raises(WaitedTooLong):
        client.wait_until(lambda s: started(s.find("idle")), until_ms=client.wall_ms() + 50)

    client.take_down(receipt.deployment_id, run="1")


async def test_the_same_from_a_trio_program(daemon):
    client = AsyncClient(host="127.0.0.1", port=daemon.management_port, token=daemon.token)
    receipt = await client.send_change(requests.create(document("async"), key="async"))
    async with client.follow() as told:
        seen = await anext(told)
        found = seen.find(receipt.deployment_id)
        start = requests.action(found, "start", key="async-start", now_ms=client.wall_ms())
        accepted = await client.send_change(start)
        async for event in told:
            if event.kind == "ready_committed":
                break
    ready = await client.wait_until(
        lambda s: started(s.find("async")), until_ms=client.wall_ms() + 10_000, every_s=0.05
    )
    stop = requests.action(ready, "stop", key="async-stop", now_ms=client.wall_ms())
    await client.send_change(stop)

    assert event.operation_id == accepted.operation_id
    assert ready.is_ready

"""What callers of a host may expect, the same of one that is here and of one over the link."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from capyctl.contracts.checkpoints import Unfetchable, Unmeasurable
from capyctl.contracts.host import EndOutcome, LaunchRefused
from capyctl.domain.checkpoints import RemoteSource, SourceKind
from capyctl.domain.identity import ExitStatus
from capyctl.domain.specs import ModelTask
from tests.link.fakes import CARD, FAILURES, FakeHost, FakeMachine, order
from tests.link.rig import open_rig

SOURCE = RemoteSource(kind=SourceKind.HTTP, key="sources/http/x", url="https://x/y")


@asynccontextmanager
async def here():
    machine = FakeMachine()
    yield FakeHost(machine), machine


@asynccontextmanager
async def over_the_link():
    async with open_rig() as rig:
        yield rig.remote, rig.machine


REACHES = pytest.mark.parametrize("reach", [here, over_the_link])


async def call(host, method: str, record):
    match method:
        case "prepare":
            return await host.prepare(order("2"))
        case "measure":
            return await host.measure("/m", weights_file="a.gguf")
        case "fetch":
            return await host.fetch(SOURCE, lambda done, total: None)
        case "wait_ready":
            return await host.wait_ready(record, order())
        case "log_tail":
            return await host.log_tail(record, bytes_max=100)
        case _:
            return await getattr(host, method)(record)


@REACHES
async def test_a_launch_from_its_order_to_its_end(reach, autojump_clock):
    async with reach() as (host, machine):
        record = await host.prepare(order())
        assert record == machine.engines[record.launch].record
        assert host.is_running(record)
        await host.run(record)
        assert await host.wait_ready(record, order()) == "canary"
        assert host.start_peak(record) == {CARD: 5}
        proof = await host.park(record)
        assert (proof.residue, proof.attributed) == ({CARD: 3}, False)
        await host.wake(record)
        assert await host.end(record, grace_s=1.0, idle_s=2.0) is EndOutcome.GONE
        assert not host.is_running(record)
        assert await host.wait_exit(record) == ExitStatus(exit_code=-9)


@REACHES
async def test_what_is_asked_of_files(reach, autojump_clock):
    seen = []
    async with reach() as (host, _):
        facts = await host.measure("/m", weights_file="a.gguf")
        total = await host.fetch(SOURCE, lambda done, total: seen.append((done, total)))

    assert facts.weights_file == "a.gguf"
    assert facts.stat_identity == (("a.gguf", 1, 2, 3, 4, 5),)
    assert total == 10
    assert seen[0] == (1, 10)


@REACHES
@pytest.mark.parametrize(
    ("method", "problem"), FAILURES, ids=lambda one: one if isinstance(one, str) else repr(one)
)
async def test_failures_come_as_they_are(reach, method, problem, autojump_clock):
    async with reach() as (host, machine):
        record = await host.prepare(order())
        machine.raises[method] = problem
        with pytest.raises(type(problem)) as raised:
            await call(host, method, record)

    assert str(raised.value) == str(problem)
    assert vars(raised.value) == vars(problem)


@pytest.mark.parametrize(
    ("method", "kind", "why"),
    [("measure", Unmeasurable, "host_unavailable"), ("fetch", Unfetchable, "io_error")],
)
async def test_files_are_asked_about_again_where_the_host_itself_fails(
    method, kind, why, autojump_clock
):
    async with over_the_link() as (host, machine):
        machine.raises[method] = TypeError("a bug of the host")
        with pytest.raises(kind, match=f"{why}: TypeError: a bug of the host") as raised:
            await call(host, method, None)
        assert not getattr(raised.value, "terminal", False)
        assert await call(host, method, None)


@REACHES
async def test_a_latch_that_is_gone_is_told_with_whether_the_engine_runs(reach, autojump_clock):
    """A run that is refused means something else when its engine is there already."""
    async with reach() as (host, machine):
        record = await host.prepare(order())
        await host.run(record)
        with pytest.raises(LaunchRefused):
            await host.run(record)
        assert host.is_running(record)
        machine.engines[record.launch].end()
        with pytest.raises(LaunchRefused):
            await host.run(record)
        assert not host.is_running(record)


@REACHES
async def test_cancelling_lets_go_of_an_engine(reach, autojump_clock):
    async with reach() as (host, machine):
        record = await host.prepare(order())
        await host.run(record)
        with trio.move_on_after(5):
            await host.wait_exit(record)
        await trio.sleep(1)

        assert machine.engines[record.launch].state == "running"


@REACHES
async def test_a_discarded_launch_is_gone(reach, autojump_clock):
    async with reach() as (host, machine):
        record = await host.prepare(order())
        await host.discard(record)

        assert machine.alive == set()
        assert not host.is_running(record)


@REACHES
async def test_looks(reach, autojump_clock):
    async with reach() as (host, _):
        record = await host.prepare(order())
        await host.run(record)
        asked_s = trio.current_time()
        memory = await host.sample()
        engine = await host.sample_engine(record)
        assert await host.park(record)
        parked = await host.sample_engine(record)

    assert memory.available_bytes == {CARD: 11}
    assert (engine.running, engine.waiting, engine.kv_usage_ratio) == (2, 1, 0.5)
    assert engine.at_s >= asked_s
    assert parked is None


@REACHES
async def test_log_tails(reach, autojump_clock):
    async with reach() as (host, machine):
        record = await host.prepare(order())
        machine.log = "one\ntwo\n"
        assert await host.log_tail(record, bytes_max=100) == ("one\ntwo\n", False)
        assert await host.log_tail(record, bytes_max=4) == ("two\n", True)
        machine.log = ""
        assert await host.log_tail(record, bytes_max=4) is None


@REACHES
async def test_what_is_known_without_asking(reach, autojump_clock):
    async with reach() as (host, _):
        assert host.routes("vllm", ModelTask.EMBED) == frozenset({"/vllm/embed"})
        assert host.shape() == FakeHost(FakeMachine()).shape()
        record = attrs.evolve(await host.prepare(order()), served_name="m")
        assert host.endpoint(record).served_name == "m"

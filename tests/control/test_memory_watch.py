"""What a launch is seen to hold: by the driver's figures, else by what the machine has left."""

from __future__ import annotations

import attrs
import pytest
import trio

from capyctl.control.memory_watch import PARK_PROOF_S, MemoryWatch
from capyctl.domain.devices import (
    Gpu,
    MachineShape,
    MemoryDomain,
    MemoryKind,
    MemorySample,
    ProcessFigures,
)
from capyctl.domain.identity import ProcessIdentity
from capyctl.domain.ids import DeploymentId, DomainName, GpuId, HostId, LaunchId
from capyctl.domain.launches import LaunchRecord
from capyctl.domain.specs import Residency
from capyctl.domain.units import GIB


def domain(name, kind, gpu=None):
    return MemoryDomain(
        name=DomainName(name),
        kind=kind,
        total_bytes=100 * GIB,
        managed_limit_bytes=90 * GIB,
        free_reserve_bytes=GIB,
        parked_limit_bytes=20 * GIB,
        gpu=gpu,
    )


def card(number, name=None):
    id = GpuId(f"gpu{number}")
    return Gpu(
        id=id, uuid=f"GPU-{number}", name="x", total_bytes=100 * GIB, domain=DomainName(name or id)
    )


CARDS = MachineShape(
    host=HostId("h"),
    gpus=(card(0), card(1)),
    domains=(
        domain("system", MemoryKind.DISTINCT),
        domain("gpu0", MemoryKind.DEVICE, GpuId("gpu0")),
        domain("gpu1", MemoryKind.DEVICE, GpuId("gpu1")),
    ),
)
UNIFIED = MachineShape(
    host=HostId("h"),
    gpus=(card(0, "unified"),),
    domains=(domain("unified", MemoryKind.UNIFIED),),
)


@attrs.define
class ScriptedMachine:
    """Looks as it is told to."""

    available: dict[str, float]
    used: dict[int, float] = attrs.field(factory=dict)
    anonymous: float = 0.0
    programs: frozenset[str] = frozenset({"vllm"})
    broken: bool = False

    def shape(self):
        raise AssertionError("its shape is given")

    async def sample(self):
        await trio.lowlevel.checkpoint()
        if self.broken:
            raise OSError("no answer")
        return MemorySample(
            at_s=trio.current_time(),
            available_bytes={n: round(v * GIB) for n, v in self.available.items()},
            used_by_pid={p: round(v * GIB) for p, v in self.used.items()},
        )

    async def look_at(self, pids):
        await trio.lowlevel.checkpoint()
        return ProcessFigures(anonymous_bytes=round(self.anonymous * GIB), programs=self.programs)


class ScriptedProcesses:
    """A leader 10 with a worker 11."""

    def __init__(self):
        self.alive = {10, 11}

    def group_members(self, process):
        return tuple(sorted(self.alive))

    def is_running(self, process):
        return process.pid in self.alive

    async def members(self, process):
        await trio.lowlevel.checkpoint()
        return {pid: who(pid) for pid in self.alive}


def who(pid):
    return ProcessIdentity(pid=pid, boot_id="b", start_ticks=pid)


def record(launch="L", uuid="GPU-1", ready=None):
    return LaunchRecord(
        launch=LaunchId(launch),
        deployment=DeploymentId("D"),
        index=0,
        family="vllm",
        profile="p",
        process=who(10),
        port=1,
        served_name="m",
        residency=Residency.DEEP,
        model_path="/m",
        device_uuids=(uuid,),
        ready={n: round(v * GIB) for n, v in (ready or {}).items()},
    )


def watching(shape=CARDS, **looks):
    looks.setdefault("available", {"system": 80, "gpu0": 90, "gpu1": 90})
    machine = ScriptedMachine(**looks)
    return machine, MemoryWatch(machine=machine, shape=shape, processes=ScriptedProcesses())


async def started(machine, watch, one, *looks):
    """A start under which the machine looks like each of ``looks`` in turn."""
    await watch.expect(one.launch)
    for look in looks:
        for name, value in look.items():
            setattr(machine, name, value)
        await watch.finish(one)
    return {name: held / GIB for name, held in watch.peak(one).items()}


async def test_the_driver_s_figures_are_the_peak_on_the_launch_s_own_card():
    machine, watch = watching()

    peak = await started(
        machine,
        watch,
        record(),
        {"used": {10: 1, 11: 12, 99: 40}, "available": {"system": 60, "gpu0": 20, "gpu1": 50}},
        {"used": {10: 1, 11: 8, 99: 40}, "available": {"system": 75, "gpu0": 20, "gpu1": 55}},
    )

    assert peak == {"gpu1": 13, "system": 20}


async def test_without_them_the_drop_counts():
    machine, watch = watching()

    looks = {"available": {"system": 70, "gpu0": 90, "gpu1": 76}}
    assert await started(machine, watch, record(), looks) == {"gpu1": 14, "system": 10}


async def test_a_drop_is_nobodys_while_something_else_moves():
    machine, watch = watching()
    with watch.moving():
        peak = await started(
            machine,
            watch,
            record(),
            {"used": {11: 12}, "available": {"system": 60, "gpu0": 90, "gpu1": 50}},
        )

    assert peak == {"gpu1": 12}


async def test_two_starts_at_once_are_measured_by_the_driver_alone():
    machine, watch = watching()
    other = record("M", "GPU-0")
    await watch.expect(record().launch)
    await watch.expect(other.launch)
    machine.available = {"system": 60, "gpu0": 80, "gpu1": 80}
    await watch.finish(record())
    await watch.finish(other)

    assert watch.peak(record()) == {}
    assert watch.peak(other) == {}


async def test_what_compilers_take_is_no_peak():
    machine, watch = watching()

    peak = await started(
        machine,
        watch,
        record(),
        {"programs": frozenset({"cicc"}), "available": {"system": 10, "gpu0": 90, "gpu1": 80}},
        {"programs": frozenset({"vllm"}), "available": {"system": 70, "gpu0": 90, "gpu1": 80}},
    )

    assert peak == {"system": 10, "gpu1": 10}


async def test_a_machine_that_cannot_be_read_measures_nothing():
    machine, watch = watching(broken=True)

    assert await started(machine, watch, record(), {}) == {}


async def test_on_unified_memory_the_drop_of_the_one_pool_counts():
    machine, watch = watching(UNIFIED, available={"unified": 90})

    looks = {"available": {"unified": 50}, "used": {11: 20}, "anonymous": 3}
    assert await started(machine, watch, record(uuid="GPU-0"), looks) == {"unified": 40}


# -- parks -----------------------------------------------------------------------------------


async def park(machine, watch, one, **after):
    before = await watch.held(one)
    for name, value in after.items():
        setattr(machine, name, value)
    return await watch.freed(one, before)


def residue(proof):
    return {name: held / GIB for name, held in proof.residue.items()}


async def test_what_is_left_is_on_the_launch_s_own_card(autojump_clock):
    machine, watch = watching(used={11: 20, 99: 30})

    proof = await park(machine, watch, record(), used={11: 2, 99: 30})

    assert (residue(proof), proof.attributed) == ({"gpu1": 2}, True)


async def test_on_unified_memory_anonymous_pages_are_left_too(autojump_clock):
    machine, watch = watching(UNIFIED, available={"unified": 50}, used={11: 20}, anonymous=4)

    proof = await park(machine, watch, record(uuid="GPU-0"), used={11: 1}, anonymous=3)

    assert (residue(proof), proof.attributed) == ({"unified": 4}, True)


async def test_too_little_by_the_driver_s_word_is_no_park(autojump_clock):
    machine, watch = watching(used={11: 20})

    assert await park(machine, watch, record(), used={11: 11}) is None
    assert trio.current_time() >= PARK_PROOF_S


async def test_weights_that_stay_by_design_are_no_failure_of_a_park(autojump_clock):
    machine, watch = watching(used={11: 20})
    one = attrs.evolve(record(), kept_bytes=15 * GIB)

    assert await park(machine, watch, one, used={11: 18}) is None
    machine.used = {11: 20 * GIB}
    proof = await park(machine, watch, one, used={11: 17})

    assert residue(proof) == {"gpu1": 17}


async def test_without_the_driver_s_word_the_rise_bounds_what_is_left(autojump_clock):
    machine, watch = watching(available={"gpu1": 60})

    proof = await park(machine, watch, record(ready={"gpu1": 30}), available={"gpu1": 88})

    assert (residue(proof), proof.attributed) == ({"gpu1": 2}, False)


@pytest.mark.parametrize(
    "after", [{"available": {"gpu1": 60}}, {"available": {}}, {"broken": True}]
)
async def test_what_is_not_seen_to_come_free_stays_in_the_residue(autojump_clock, after):
    machine, watch = watching(available={"gpu1": 60})

    proof = await park(machine, watch, record(ready={"gpu1": 30}), **after)

    assert (residue(proof), proof.attributed) == ({"gpu1": 30}, False)


# -- workers ---------------------------------------------------------------------------------


async def test_a_worker_that_held_memory_is_missed(autojump_clock):
    _, watch = watching(used={11: 20})
    await watch.finish(record())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            found = []

            async def look():
                found.append(await watch.worker_gone(record()))

            nursery.start_soon(look)
            await trio.sleep(5)
            assert found == []
            watch.processes.alive.discard(11)
    assert found == [11]


async def test_a_child_without_device_memory_may_come_and_go(autojump_clock):
    _, watch = watching(used={10: 20})
    await watch.finish(record())
    watch.processes.alive.discard(11)

    with trio.move_on_after(30) as scope:
        await watch.worker_gone(record())
    assert scope.cancelled_caught

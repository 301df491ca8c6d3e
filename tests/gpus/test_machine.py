import pytest
import trio

from capyctl.domain.devices import MemoryKind
from capyctl.domain.ids import HostId
from capyctl.gpus.machine import UnsupportedTopology, detect_machine
from capyctl.gpus.nvml import CardsUnreadable, NoDriver, Nvml
from tests.gpus.fake_nvml import (
    FakeNvml,
    NVMLError,
    NVMLError_DriverNotLoaded,
    NVMLError_LibraryNotFound,
    card,
)
from tests.gpus.trees import GIB, proc

HERE = HostId("here")


@pytest.fixture
def detect(tmp_path):
    def make(nvml, within_s=3.0, **options):
        (tmp_path / "cgroup").mkdir(exist_ok=True)
        return detect_machine(
            HERE,
            cards=Nvml(binding=nvml, within_s=within_s),
            proc=proc(tmp_path),
            cgroups=tmp_path / "cgroup",
            monotonic_s=lambda: 5.0,
            **options,
        )

    return make


def test_cards_with_memory_of_their_own(detect):
    shape = detect(FakeNvml(card(0), card(1, total=80 * GIB, free=79 * GIB))).shape()
    assert [(g.id, g.uuid, g.total_bytes, g.domain) for g in shape.gpus] == [
        ("gpu0", "GPU-0", 24 * GIB, "gpu0"),
        ("gpu1", "GPU-1", 80 * GIB, "gpu1"),
    ]
    assert [(d.name, d.kind) for d in shape.domains] == [
        ("system", MemoryKind.DISTINCT),
        ("gpu0", MemoryKind.DEVICE),
        ("gpu1", MemoryKind.DEVICE),
    ]
    assert not shape.unified


async def test_a_card_that_shares_the_machines_memory(detect):
    machine = detect(FakeNvml(card(total=None)))
    shape = machine.shape()
    assert shape.unified
    assert [(d.name, d.total_bytes) for d in shape.domains] == [("unified", 64 * GIB)]
    assert (shape.gpus[0].domain, shape.gpus[0].total_bytes) == ("unified", 64 * GIB)
    sample = await machine.sample()
    assert sample.available_bytes == {"unified": 48 * GIB}


def test_both_kinds_in_one_machine_are_refused(detect):
    with pytest.raises(UnsupportedTopology) as caught:
        detect(FakeNvml(card(0), card(1, total=None)))
    assert caught.value.code == "unsupported_gpu_topology"


@pytest.mark.parametrize(
    "nvml",
    [
        FakeNvml(init_error=NVMLError_LibraryNotFound()),
        FakeNvml(init_error=NVMLError_DriverNotLoaded()),
        FakeNvml(),
    ],
)
async def test_without_driver_or_card_there_is_host_ram_alone(detect, nvml):
    machine = detect(nvml)
    assert machine.shape().gpus == ()
    assert [d.name for d in machine.shape().domains] == ["system"]
    assert machine.memory_sources == {"system": "meminfo"}
    inits = nvml.inits
    sample = await machine.sample()
    assert sample.available_bytes == {"system": 48 * GIB}
    assert machine.void is None
    assert nvml.inits == inits, "a machine without cards is not asked for them again"


def test_a_driver_that_fails_is_not_taken_for_none(detect):
    with pytest.raises(CardsUnreadable):
        detect(FakeNvml(init_error=NVMLError("unknown")))


MALFORMED = {
    "index twice": [card(0), card(0, uuid="GPU-x")],
    "uuid twice": [card(0), card(1, uuid="GPU-0")],
    "no uuid": [card(0, uuid="")],
    "negative": [card(0, used=-1)],
    "a text": [card(0, free="23")],
    "zero": [card(0, total=0, used=0, free=0)],
    "too much": [card(0, used=2 * GIB, free=23 * GIB)],
    "index": [card(-1)],
}


@pytest.mark.parametrize("cards", MALFORMED.values(), ids=MALFORMED)
async def test_one_malformed_value_voids_the_sample(detect, cards):
    with pytest.raises(CardsUnreadable):
        detect(FakeNvml(*cards))
    nvml = FakeNvml(card(0), card(1))
    machine = detect(nvml)
    assert set((await machine.sample()).available_bytes) == {"system", "gpu0", "gpu1"}
    nvml.cards = cards
    sample = await machine.sample()
    assert sample.available_bytes == {"system": 48 * GIB}
    assert machine.void


def test_figures_a_little_apart_are_fine(detect):
    detect(FakeNvml(card(0, used=1 * GIB + 60 * 1024**2)))


async def test_errors_are_met_with_a_fresh_start(detect):
    nvml = FakeNvml(card(0))
    machine = detect(nvml)
    nvml.error = NVMLError("gpu is lost")
    assert set((await machine.sample()).available_bytes) == {"system"}
    nvml.error = None
    assert set((await machine.sample()).available_bytes) == {"system", "gpu0"}
    assert nvml.inits == 2


async def test_a_card_that_vanishes_and_one_that_appears(detect):
    nvml = FakeNvml(card(0), card(1))
    machine = detect(nvml)
    nvml.cards = [card(0), card(2)]
    assert set((await machine.sample()).available_bytes) == {"system", "gpu0"}


@pytest.mark.slow
async def test_a_driver_that_hangs_costs_one_thread_and_its_figures(detect):
    nvml = FakeNvml(card(0))
    machine = detect(nvml, within_s=0.2)
    nvml.go_on.clear()
    with trio.fail_after(5):
        for _ in range(2):
            assert set((await machine.sample()).available_bytes) == {"system"}
            assert "did not answer within 0.2 s" in machine.void
    nvml.go_on.set()
    with trio.fail_after(5):
        while "gpu0" not in (await machine.sample()).available_bytes:
            await trio.lowlevel.checkpoint()


@pytest.mark.slow
def test_detection_does_not_wait_for_ever(detect):
    nvml = FakeNvml(card(0))
    nvml.go_on.clear()
    with pytest.raises(CardsUnreadable, match="did not answer"):
        detect(nvml, within_s=0.2)
    nvml.go_on.set()


async def test_samples_carry_time_free_bytes_and_processes(detect):
    processes = [(10, 2 * GIB), (11, None), (10, GIB)]
    machine = detect(FakeNvml(card(0, used=4 * GIB, free=20 * GIB, processes=processes)))
    sample = await machine.sample()
    assert sample.at_s == 5.0
    assert sample.available_bytes["gpu0"] == 20 * GIB
    assert sample.used_by_pid == {10: 3 * GIB}
    assert machine.available_ram_bytes() == 48 * GIB


@pytest.mark.parametrize(
    ("processes", "ours", "reserve_bytes"),
    [
        # The reserve of a 24 GiB card is 8 % of it, less what others hold.
        ([], (), 24 * GIB * 8 // 100 - GIB),
        ([(10, GIB)], (10,), 24 * GIB * 8 // 100),
        ([(10, GIB // 2)], (10,), 24 * GIB * 8 // 100 - GIB // 2),
        (None, (10,), 24 * GIB * 8 // 100),
    ],
)
def test_what_others_hold_comes_out_of_the_reserve(detect, processes, ours, reserve_bytes):
    machine = detect(FakeNvml(card(0, processes=processes)), our_pids=ours)
    assert machine.shape().domain("gpu0").free_reserve_bytes == reserve_bytes


def test_this_very_machine_is_detected():
    """With the real library: a GPU or none, but an answer."""
    try:
        cards = Nvml().read()
    except NoDriver:
        cards = ()
    shape = detect_machine(HERE).shape()
    assert len(shape.gpus) == len(cards)
    assert shape.domains[0].total_bytes > 0

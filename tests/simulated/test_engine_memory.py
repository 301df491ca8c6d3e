"""Engines draw what they are charged, and never what is not there."""

import json

import attrs
import pytest

from capyctl.domain.specs import PhaseCharges
from capyctl.domain.units import GIB, MIB
from capyctl.simulated.behaviour import Behaviour
from capyctl.simulated.document import parse_simulate
from capyctl.simulated.engine_memory import EngineMemory, Sizes, find_gpu
from capyctl.simulated.engines import CHARGES, charges_env
from capyctl.simulated.machine import SimulatedMachine
from capyctl.simulated.usage import read_draws
from tests.simulated.running import until

SIZES = Sizes(weights_bytes=8 * GIB, kv_cache_bytes=2 * GIB)
CHARGED = {
    "ready": {"gpu0": 12 * GIB, "system": 4 * GIB},
    "parked": {"gpu0": GIB, "system": 16 * GIB},
}


def memory(text="", *, charges=None, gpu="0", **behaviour):
    document = parse_simulate(text)
    return EngineMemory(
        document=document,
        behaviour=Behaviour(**behaviour),
        gpu=find_gpu(document, gpu),
        usage_dir=None,
        charges=charges,
        owner_pid=1,
    )


def test_without_charges_weights_and_cache_are_drawn():
    assert memory().needed("ready", SIZES) == (10 * GIB, 0)
    assert memory().needed("parked", SIZES) == (512 * MIB, 0)
    copy = attrs.evolve(SIZES, keeps_copy=True)
    assert memory().needed("parked", copy) == (512 * MIB, 8 * GIB)


def test_charges_are_drawn_exactly():
    found = memory(charges=CHARGED)

    assert found.needed("ready", SIZES) == (12 * GIB, 4 * GIB)
    assert found.needed("parked", SIZES) == (GIB, 16 * GIB)
    # A phase that is charged nothing is not in the charges of some launchers.
    assert found.needed("wake", SIZES) == (10 * GIB, 0)


def test_what_the_document_states_goes_first():
    found = memory(charges=CHARGED, kv_cache_bytes=GIB, residue_bytes=7, extra_bytes=1)

    assert found.needed("ready", SIZES) == (9 * GIB + 1, 4 * GIB)
    assert found.needed("parked", SIZES) == (7, 16 * GIB)


def test_each_park_after_the_first_may_leave_more_behind():
    found = memory(charges=CHARGED, residue_bytes=7, residue_growth_bytes=2)
    left = []
    for phase in ("ready", "parking", "parked", "parked", "wake", "ready", "parked"):
        found.enter(phase, SIZES)
        if phase == "parked":
            left.append(found.needed("parked", SIZES)[0])

    assert left == [7, 7, 9]


def test_unified_and_bare_machines_have_one_pool():
    unified = memory("unified=64GiB", charges={"ready": {"unified": 5}})
    bare = memory("gpus=0", charges={"ready": {"system": 6}})

    assert unified.needed("ready", SIZES) == (5, 0)
    assert bare.needed("ready", SIZES) == (6, 0)


def test_which_gpu_is_meant():
    document = parse_simulate("gpus=2")
    one = document.gpus[1]

    assert find_gpu(document, None) == document.gpus[0]
    assert [find_gpu(document, text) for text in ("1", one.uuid, one.uuid[:12])] == [one] * 3
    assert [find_gpu(document, text) for text in ("", "7", "GPU-x")] == [None] * 3


def test_charges_travel_in_a_variable():
    phase = {"gpu0": 1, "system": 2}
    charges = PhaseCharges(cold=phase, ready=phase, parking=phase, parked={}, wake=phase)

    found = json.loads(charges_env(charges)[CHARGES])

    assert found == dict.fromkeys(("cold", "ready", "parking", "wake"), phase) | {"parked": {}}


@pytest.mark.slow
async def test_each_phase_is_drawn_from_the_machine(machine):
    charges = CHARGED | {"cold": {"gpu0": 14 * GIB}, "wake": {"gpu0": 13 * GIB}}
    env = {CHARGES: json.dumps(charges)}
    seen = SimulatedMachine(parse_simulate(""), machine.usage)
    async with machine.vllm("--enable-sleep-mode", env=env, wake_s=0.5) as engine:
        ready = await seen.sample()
        await engine.post("/sleep?level=1")
        parked = await seen.sample()
        _, worker = engine.children()
    # The kernel ends the group one by one.
    await until(lambda: not read_draws(machine.usage))
    ended = await seen.sample()

    def taken(sample):
        available = sample.available_bytes
        return 24 * GIB - available["gpu0"], 256 * GIB - available["system"]

    assert taken(ready) == (12 * GIB, 4 * GIB)
    assert taken(parked) == (GIB, 16 * GIB)
    assert parked.used_by_pid == {worker: GIB}
    assert taken(ended) == (0, 0)


@pytest.mark.slow
async def test_a_start_without_room_is_refused_in_the_engine_s_words(machine):
    async with machine.vllm("--kv-cache-memory-bytes", "16G"):
        async with machine.vllm("--kv-cache-memory-bytes", "5G", wait=False) as second:
            vllm_code = await second.wait_exit()
        async with machine.llama(wait=False, extra=5 * GIB) as third:
            llama_code = await third.wait_exit()

    assert (vllm_code, llama_code) == (1, 1)
    assert (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.00 GiB. "
        "GPU 0 has a total capacity of 24.00 GiB of which 6.00 GiB is free."
    ) in second.log
    assert "Engine core initialization failed" in second.log
    assert "cudaMalloc failed: out of memory" in third.log


@pytest.mark.slow
async def test_a_share_of_the_card_is_drawn_where_the_cache_is_not_stated(machine):
    model = machine.model("w", format="safetensors")
    async with machine.engine("vllm", "serve", model, "--gpu-memory-utilization", "0.5"):
        (drawn,) = machine.drawn()

    assert drawn["bytes"] == 12 * GIB


@pytest.mark.slow
async def test_llama_draws_weights_and_its_cache(machine):
    async with machine.llama("--cache-type-k", "q8_0", "--cache-type-v", "q8_0"):
        (drawn,) = machine.drawn()

    # 8192 tokens, 32 layers of 8 heads of 128, keys and values at 34 bytes for 32.
    assert drawn["bytes"] == 2 * GIB + 8_192 * 32 * 8 * 128 * 2 * 34 // 32

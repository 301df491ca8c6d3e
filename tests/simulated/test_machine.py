import os

import pytest
import trio

from capyctl.domain.units import GIB
from capyctl.simulated.document import parse_simulate, read_file
from capyctl.simulated.machine import DOCUMENT_NAME, SimulatedMachine
from capyctl.simulated.usage import Draw, put_draw, start_ticks_of


def machine(tmp_path, text="", **more):
    return SimulatedMachine(parse_simulate(text), tmp_path / "usage", **more)


def test_the_shape_has_derived_limits(tmp_path):
    shape = machine(tmp_path, "gpus=2,memory=48GiB,ram=100GiB").shape()

    assert [(domain.name, domain.kind.value) for domain in shape.domains] == [
        ("system", "distinct"),
        ("gpu0", "device"),
        ("gpu1", "device"),
    ]
    assert shape.domain(shape.gpus[1].domain).total_bytes == 48 * GIB
    assert (shape.gpus[0].id, shape.gpus[0].total_bytes) == ("gpu0", 48 * GIB)
    assert not shape.unified


def test_a_unified_shape_has_one_domain(tmp_path):
    shape = machine(tmp_path, "unified=64GiB").shape()

    assert shape.unified
    assert [domain.name for domain in shape.domains] == ["unified"]
    assert shape.gpus[0].domain == "unified"


async def test_a_sample_shows_what_is_left(tmp_path):
    one = machine(tmp_path, monotonic_s=lambda: 7.0)
    pid = os.getpid()
    mine = Draw(
        pid=pid, start_ticks=start_ticks_of(pid) or 0, gpu="gpu0", bytes=5 * GIB, ram_bytes=GIB
    )
    room = {"gpu0": 24 * GIB, "system": 256 * GIB}
    put_draw(tmp_path / "usage", mine, room=room, unified=False)

    sample = await one.sample()

    assert sample.at_s == 7.0
    assert sample.available_bytes == {"system": 255 * GIB, "gpu0": 19 * GIB}
    assert sample.used_by_pid == {pid: 5 * GIB}


async def test_what_others_hold_is_not_available(tmp_path):
    path = tmp_path / "machine.yaml"
    path.write_text("gpus: [{memory: 24GiB, used: 1GiB}]")
    one = machine(tmp_path, str(path))

    assert (await one.sample()).available_bytes["gpu0"] == 23 * GIB
    assert one.shape().domains[1].free_reserve_bytes == 24 * GIB * 8 // 100 - GIB


async def test_an_idle_unified_machine(tmp_path):
    assert (await machine(tmp_path, "unified=64GiB").sample()).available_bytes == {
        "unified": 64 * GIB
    }


def test_profiles_are_complete(tmp_path):
    vllm, llama, sglang, tensorfold = machine(tmp_path).profiles()

    assert (vllm.name, vllm.family, vllm.deep_park) == ("vllm", "vllm", True)
    assert (llama.name, llama.family, llama.deep_park) == ("llamacpp", "llamacpp", False)
    assert (sglang.name, sglang.family, sglang.deep_park) == ("sglang", "sglang", True)
    assert (tensorfold.name, tensorfold.deep_park) == ("tensorfold", False)
    assert vllm.source == "simulated"
    assert all(os.path.isabs(part) for part in (vllm.executable[0], vllm.executable[2]))
    assert vllm.env["CAPYCTL_SIMULATED_USAGE"] == str(tmp_path / "usage")


def test_engines_find_the_document(tmp_path):
    document = parse_simulate("gpus=3")
    SimulatedMachine(document, tmp_path / "usage")

    assert read_file(tmp_path / "usage" / DOCUMENT_NAME) == document
    assert (tmp_path / "usage").stat().st_mode & 0o777 == 0o700


def test_limits_that_do_not_fit_are_refused(tmp_path):
    from capyctl.ledger.limits import RamLimits

    with pytest.raises(ValueError, match="managed_limit"):
        machine(tmp_path, ram_limits=RamLimits(managed_limit_bytes=300 * GIB))


async def test_samples_have_the_time_that_they_are_compared_by(tmp_path):
    """A look from before a release is told by its time; another clock would void every look."""
    before_s = trio.current_time()
    sample = await machine(tmp_path).sample()

    assert before_s <= sample.at_s <= trio.current_time()

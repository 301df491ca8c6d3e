"""What a host's document says of its machine, laid over what the machine is."""

from __future__ import annotations

import pytest

from capyctl.config.host_settings import load_host
from capyctl.config.role_document import Given
from capyctl.daemon.detecting import MachineUnusable
from capyctl.daemon.host_policy import limited
from capyctl.domain.units import GIB
from capyctl.simulated.document import parse_simulate
from capyctl.simulated.machine import SimulatedMachine

HEAD = "schema_version: 1\nkind: host\nname: box\ningress: {bind: '10.0.0.1:1'}\n"
SYSTEM = "system: {memory: distinct, managed_limit: 40GiB, free_reserve: 8GiB, parked_limit: 4GiB}"
GPU0 = (
    "gpu0: {memory: device, device: gpu0, managed_limit: 20GiB, free_reserve: 2GiB, "
    "parked_limit: 1GiB}"
)


def shape_of(tmp_path, machine="gpus=2,memory=24GiB,ram=64GiB"):
    return SimulatedMachine(parse_simulate(machine), tmp_path / "usage").shape()


def settings(tmp_path, domains="", devices=""):
    path = tmp_path / "host.yaml"
    policy = f"resource_policy: {{domains: {{{domains}}}, devices: {{{devices}}}}}\n"
    path.write_text(HEAD + policy)
    return load_host(tmp_path / "state", Given(env={"HOME": "/h"}, config_path=path))


def test_nothing_stated_is_what_the_machine_has(tmp_path):
    shape = shape_of(tmp_path)

    assert limited(shape, settings(tmp_path)) == shape


def test_stated_limits_win_and_other_cards_are_left_alone(tmp_path):
    found = limited(shape_of(tmp_path), settings(tmp_path, f"{SYSTEM}, {GPU0}"))

    assert [str(one.name) for one in found.domains] == ["system", "gpu0"]
    assert [str(one.id) for one in found.gpus] == ["gpu0"]
    system, gpu0 = found.domains
    assert (system.managed_limit_bytes, system.free_reserve_bytes) == (40 * GIB, 8 * GIB)
    assert (gpu0.managed_limit_bytes, gpu0.parked_limit_bytes) == (20 * GIB, GIB)
    assert gpu0.free_reserve_bytes == 2 * GIB


def test_what_others_hold_comes_out_of_a_card_s_reserve(tmp_path):
    text = '{"gpus": [{"memory": "24GiB", "used": "1GiB"}], "ram": "64GiB"}'

    found = limited(shape_of(tmp_path, text), settings(tmp_path, f"{SYSTEM}, {GPU0}"))

    assert found.domains[1].free_reserve_bytes == GIB


def test_a_document_of_a_simulated_machine_is_started_with_simulate(tmp_path):
    simulated = parse_simulate("gpus=1").gpus[0].uuid
    stated = settings(
        tmp_path,
        f"{SYSTEM}, {GPU0}",
        f"gpu0: {{domain: gpu0, physical_gpu_uuid: {simulated}}}",
    )

    with pytest.raises(MachineUnusable) as refused:
        limited(shape_of(tmp_path, "gpus=0,ram=64GiB"), stated)

    assert "start with --simulate" in str(refused.value)
    assert "init host" in str(refused.value)


@pytest.mark.parametrize(
    ("domains", "devices", "words"),
    [
        (f"{SYSTEM}, {GPU0.replace('gpu0', 'gpu7')}", "", "domains.gpu7"),
        (SYSTEM.replace("40GiB", "60GiB"), "", "60.0 GiB and free_reserve 8.0 GiB"),
        (
            f"{SYSTEM}, {GPU0}",
            "gpu0: {domain: gpu0, physical_gpu_uuid: GPU-other}",
            "GPU-other is stated, and there is GPU-",
        ),
        (
            "unified: {memory: unified, managed_limit: 1GiB, free_reserve: 0B, parked_limit: 0B}",
            "",
            "this machine has system, gpu0, gpu1",
        ),
    ],
)
def test_another_machine_is_refused(tmp_path, domains, devices, words):
    with pytest.raises(MachineUnusable, match="device_policy_mismatch") as refused:
        limited(shape_of(tmp_path), settings(tmp_path, domains, devices))

    assert refused.value.code == "device_policy_mismatch"
    assert words in str(refused.value)

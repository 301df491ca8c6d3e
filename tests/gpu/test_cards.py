"""On a machine with a card: what the driver tells, and what others hold there. `make test-gpu`."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from capyctl.domain.devices import MemoryKind
from capyctl.domain.ids import HostId
from capyctl.gpus.machine import detect_machine
from capyctl.gpus.nvml import Nvml
from capyctl.ledger.ledger import foreign_bytes, open_ledger, shortage

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

GIB = 1 << 30
HERE = HostId("here")
BEYOND_BYTES = 2 * GIB
"""What somebody else holds beyond the card's reserve."""
SLACK_BYTES = GIB
"""A context beside what is held, and others who come and go."""
HOLDING = Path(__file__).with_name("holding.py")
SHOWN_S_MAX = 20.0


@contextlib.contextmanager
def somebody_else(card, held_bytes):
    """A program of the user's that holds so much of a card."""
    python = os.environ.get("CAPYCTL_TEST_TORCH_PYTHON", sys.executable)
    first = {**os.environ, "CUDA_VISIBLE_DEVICES": card.uuid}
    with subprocess.Popen(
        [python, str(HOLDING), str(held_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=first,
        text=True,
    ) as program:
        try:
            line = program.stdout.readline()
            if not line.startswith("held"):
                pytest.skip(f"nothing could be held on the card: exit code {program.wait(10)}")
            yield program
        finally:
            program.stdin.close()
            program.wait(30)


def first_card_free_bytes():
    return Nvml().read()[0].free_bytes


def until(holds):
    ends_s = time.monotonic() + SHOWN_S_MAX
    while not holds():
        assert time.monotonic() < ends_s, f"not within {SHOWN_S_MAX} s"
        time.sleep(0.1)


def test_figures_of_each_card_agree_with_each_other(cards):
    for one in cards:
        assert one.total_bytes > GIB
        assert 0 <= one.used_bytes <= one.total_bytes
        assert 0 <= one.free_bytes <= one.total_bytes
        assert sum(one.used_by_pid.values()) <= one.total_bytes
    assert len({one.uuid for one in cards}) == len(cards)


async def test_the_machine_has_a_domain_for_each_card(cards):
    machine = detect_machine(HERE)
    sample = await machine.sample()

    shape = machine.shape()
    devices = [d for d in shape.domains if d.kind is MemoryKind.DEVICE]
    assert [gpu.uuid for gpu in shape.gpus] == [one.uuid for one in cards]
    assert len(devices) == len(cards)
    for domain in devices:
        assert 0 < domain.managed_limit_bytes < domain.total_bytes
        assert domain.name in sample.available_bytes
    assert machine.void is None


async def test_looking_does_not_take_long(cards):
    machine = detect_machine(HERE)
    await machine.sample()
    began_s = time.monotonic()
    for _ in range(10):
        await machine.sample()

    assert (time.monotonic() - began_s) / 10 < 0.25


async def test_memory_of_another_program_is_not_given_out_and_is_told_in_figures(cards):
    """Seen while it is held, refused with figures, and free again once that program ended."""
    machine = detect_machine(HERE)
    shape = machine.shape()
    domain = next(d for d in shape.domains if d.name == shape.gpus[0].domain)
    before = first_card_free_bytes()
    held_bytes = domain.free_reserve_bytes + BEYOND_BYTES
    if before < held_bytes + 2 * SLACK_BYTES:
        pytest.skip(f"only {before / GIB:.1f} GiB of the first card are free")
    ledger = open_ledger((shape,))
    with somebody_else(cards[0], held_bytes):
        until(lambda: first_card_free_bytes() <= before - held_bytes)
        sample = await machine.sample()
        foreign = foreign_bytes(ledger, {HERE: sample})
        everything = {domain.name: domain.managed_limit_bytes}
        short = shortage(ledger, HERE, everything, foreign=foreign)
    until(lambda: first_card_free_bytes() >= before - SLACK_BYTES)

    assert foreign[(HERE, domain.name)] >= held_bytes
    excess = foreign[(HERE, domain.name)] - domain.free_reserve_bytes
    assert excess >= BEYOND_BYTES
    assert short is not None
    assert short.available_bytes == domain.managed_limit_bytes - excess
    assert "GiB" in str(short)

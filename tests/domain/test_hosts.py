"""Which releases go together, and which machine is still the one that was enrolled."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.hosts import Compatibility, compatibility, other_machine
from capyctl.domain.units import GIB
from tests.ledger.machines import shape_of

SHAPE = shape_of(2)
C = Compatibility


@pytest.mark.parametrize(
    ("host", "server", "found"),
    [
        ("0.1.0", "0.1.0", C.SUPPORTED),
        ("0.1.9", "0.1.0", C.SUPPORTED),
        ("0.1.0.dev1", "0.1.0", C.SUPPORTED),
        ("0.1.0", "0.2.0", C.UPGRADE_RECOMMENDED),
        ("0.1.0", "0.3.0", C.UPGRADE_REQUIRED),
        ("0.9.0", "1.0.0", C.UPGRADE_REQUIRED),
        ("1.1.0", "2.2.0", C.UPGRADE_REQUIRED),
        ("0.2.0", "0.1.0", C.SERVER_BEHIND),
        ("1.0.0", "0.9.0", C.SERVER_BEHIND),
        ("", "0.1.0", C.UPGRADE_REQUIRED),
        ("nightly", "0.1.0", C.UPGRADE_REQUIRED),
    ],
)
def test_what_a_hosts_release_may_do(host, server, found):
    assert compatibility(host, server) is found


def test_the_same_machine_with_other_limits_is_the_same():
    domains = tuple(
        attrs.evolve(d, managed_limit_bytes=GIB, total_bytes=d.total_bytes - GIB)
        for d in SHAPE.domains
    )

    assert other_machine(SHAPE, attrs.evolve(SHAPE, domains=domains)) is None


def test_another_card_in_the_same_place_is_another_machine():
    swapped = attrs.evolve(SHAPE.gpus[0], uuid="GPU-new")
    now = attrs.evolve(SHAPE, gpus=(swapped, SHAPE.gpus[1]))

    why = other_machine(SHAPE, now)

    assert "gpu0 (GPU-new)" in why
    assert "gpu0 (GPU-0)" in why


def test_a_card_less_is_another_machine():
    assert other_machine(SHAPE, shape_of(1)) is not None
    assert other_machine(shape_of(1), SHAPE) is not None

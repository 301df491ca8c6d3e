import pytest

from capyctl.domain.devices import MemoryKind
from capyctl.domain.ids import GpuId
from capyctl.domain.units import GIB, MIB
from capyctl.ledger.limits import RamLimits, derive_domains

CARD = GpuId("gpu0")


def test_a_discrete_machine_has_ram_and_one_domain_a_card():
    ram, small, large = derive_domains(
        ram_bytes=256 * GIB, cards={CARD: 8 * GIB, GpuId("gpu1"): 80 * GIB}
    )

    assert (ram.name, ram.kind) == ("system", MemoryKind.DISTINCT)
    assert ram.managed_limit_bytes == 128 * GIB
    assert ram.free_reserve_bytes == 256 * GIB * 20 // 100
    assert ram.parked_limit_bytes == 64 * GIB
    # Below 12.5 GiB one GiB is more than 8 %.
    assert (small.name, small.gpu, small.free_reserve_bytes) == ("gpu0", "gpu0", GIB)
    assert (small.managed_limit_bytes, small.parked_limit_bytes) == (7 * GIB, 2 * GIB)
    assert large.free_reserve_bytes == 80 * GIB * 8 // 100
    assert large.managed_limit_bytes + large.free_reserve_bytes == 80 * GIB
    assert large.parked_limit_bytes == 8 * GIB


def test_a_unified_machine_has_one_pool():
    (pool,) = derive_domains(ram_bytes=128 * GIB, cards={CARD: 128 * GIB}, unified=True)

    assert (pool.name, pool.kind, pool.gpu) == ("unified", MemoryKind.UNIFIED, None)
    assert pool.managed_limit_bytes == 64 * GIB


def test_what_others_hold_comes_out_of_the_reserve_once():
    _, card = derive_domains(ram_bytes=GIB, cards={CARD: 24 * GIB}, outside_bytes={CARD: 500 * MIB})
    assert card.free_reserve_bytes == 24 * GIB * 8 // 100 - 500 * MIB

    _, full = derive_domains(ram_bytes=GIB, cards={CARD: 24 * GIB}, outside_bytes={CARD: 9 * GIB})
    assert full.free_reserve_bytes == 0


def test_a_smaller_managed_limit_lowers_the_parked_one():
    (ram,) = derive_domains(
        ram_bytes=100 * GIB, cards={}, ram_limits=RamLimits(managed_limit_bytes=10 * GIB)
    )

    assert ram.parked_limit_bytes == 10 * GIB


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (RamLimits(managed_limit_bytes=0), "managed_limit"),
        (RamLimits(managed_limit_bytes=90 * GIB), r"90\.0 GiB and free_reserve 20\.0 GiB"),
        (RamLimits(parked_limit_bytes=51 * GIB), r"51\.0 GiB exceeds managed_limit 50\.0 GiB"),
    ],
)
def test_limits_that_do_not_fit_are_refused_with_figures(limits, said):
    with pytest.raises(ValueError, match=said):
        derive_domains(ram_bytes=100 * GIB, cards={}, ram_limits=limits)


def test_a_card_that_is_all_reserve_is_refused():
    with pytest.raises(ValueError, match=r"gpu0 has 1\.0 GiB"):
        derive_domains(ram_bytes=GIB, cards={CARD: GIB})

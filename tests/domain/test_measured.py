"""Measured figures replace placeholders, keep the larger, and never what was declared."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.domain.ids import HostId
from capyctl.domain.measured import growth_max_bytes, measured_candidate, merged
from capyctl.domain.specs import Candidate, Measured, PhaseCharges, StartupSource
from capyctl.domain.units import GIB

HOST = HostId("host")
OTHER = HostId("other")


def candidate(cold=40, ready=20, parked=2, **changes) -> Candidate:
    held = {"unified": ready * GIB}
    charges = PhaseCharges(
        cold={"unified": cold * GIB},
        ready=held,
        parking=held,
        parked={"unified": parked * GIB},
        wake=held,
    )
    made = Candidate(host=HOST, gpu="gpu0", charges=charges)
    return attrs.evolve(made, **changes)


def seen(host=HOST, *, peak=None, residue=None, installation="sha256:a") -> Measured:
    return Measured(
        host=host,
        installation=installation,
        peak={} if peak is None else {"unified": round(peak * GIB)},
        residue={} if residue is None else {"unified": round(residue * GIB)},
    )


@pytest.mark.parametrize(
    ("peak", "cold"),
    [(25, 25), (60, 60), (12, 20)],
    ids=["below the placeholder", "above it", "below ready"],
)
def test_a_peak_replaces_the_placeholder_but_never_falls_below_ready(peak, cold):
    found = measured_candidate(candidate(), (seen(peak=peak),))

    assert found.charges.cold == {"unified": cold * GIB}
    assert found.startup is StartupSource.MEASURED
    assert found.charges.parked == {"unified": 2 * GIB}


@pytest.mark.parametrize(("residue", "parked"), [(1, 2), (7, 7), (30, 20)])
def test_a_residue_stays_between_placeholder_and_ready(residue, parked):
    found = measured_candidate(candidate(), (seen(residue=residue),))

    assert found.charges.parked == {"unified": parked * GIB}
    assert found.startup is StartupSource.DERIVED
    assert found.charges.cold == {"unified": 40 * GIB}


def test_declared_figures_stay():
    stated = candidate(startup=StartupSource.DECLARED)
    whole = candidate(startup=StartupSource.DECLARED, declared=True)
    known = (seen(peak=25, residue=7),)

    assert measured_candidate(stated, known).charges.cold == {"unified": 40 * GIB}
    assert measured_candidate(stated, known).startup is StartupSource.DECLARED
    assert measured_candidate(stated, known).charges.parked == {"unified": 7 * GIB}
    assert measured_candidate(whole, known) == whole


def test_what_another_host_showed_says_nothing():
    assert measured_candidate(candidate(), (seen(OTHER, peak=25),)) == candidate()


def test_a_domain_that_was_not_measured_keeps_its_placeholder():
    one = candidate()
    beside = {**one.charges.cold, "system": 9 * GIB}
    one = attrs.evolve(one, charges=attrs.evolve(one.charges, cold=beside))

    found = measured_candidate(one, (seen(peak=25),))

    assert found.charges.cold == {"unified": 25 * GIB, "system": 9 * GIB}


def test_another_installation_begins_anew():
    known = merged((seen(peak=50, residue=5),), seen(peak=10, installation="sha256:b"))

    assert known == (seen(peak=10, installation="sha256:b"),)


def test_hosts_are_kept_apart():
    known = merged((seen(peak=50),), seen(OTHER, peak=10))

    assert {one.host: one.peak["unified"] for one in known} == {HOST: 50 * GIB, OTHER: 10 * GIB}


figures = st.builds(
    seen,
    peak=st.none() | st.integers(1, 90),
    residue=st.none() | st.integers(1, 90),
)


@given(st.lists(figures, min_size=1, max_size=6), st.randoms())
def test_the_order_of_launches_does_not_matter_and_the_largest_stays(launches, chance):
    def after(sequence):
        known = ()
        for one in sequence:
            known = merged(known, one)
        return known

    shuffled = list(launches)
    chance.shuffle(shuffled)

    (kept,) = after(launches)
    assert after(shuffled) == (kept,)
    assert all(kept.peak["unified"] >= one.peak["unified"] for one in launches if one.peak)
    assert merged((kept,), launches[0]) == (kept,)


@given(st.lists(figures, max_size=4))
def test_no_charge_ever_rises_from_cold_to_ready_or_falls_below_its_placeholder(launches):
    known = ()
    for one in launches:
        known = merged(known, one)

    charges = measured_candidate(candidate(), known).charges

    assert charges.cold["unified"] >= charges.ready["unified"]
    assert 2 * GIB <= charges.parked["unified"] <= charges.ready["unified"]


@pytest.mark.parametrize(
    ("limit", "most"),
    [("auto", 4 * GIB), ("off", None), ("0%", 0), ("50%", 2 * GIB), ("300MiB", 300 << 20)],
)
def test_growth_is_measured_against_the_first(limit, most):
    assert growth_max_bytes(limit, 4 * GIB) == most

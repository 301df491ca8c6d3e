"""Settings of several machines: kept once where they agree, and carried out where a place is."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.launches import ModelFiles
from capyctl.machines.fitting import fits_of, is_selected, named_hosts, order_on, with_fit
from capyctl.machines.instance import InstanceState
from capyctl.machines.setting_off import begin_starts
from capyctl.messages.instance import Cause
from tests.machines.machines_of import A, B, C, fit, publication, record
from tests.machines.making import NOW_MS, SPEC, deployment, instance, moment


def on(*fits):
    found = deployment(resolved=None)
    for host, one in fits:
        found = with_fit(found, host, one)
    return found


def test_machines_that_agree_are_kept_once():
    found = on((A, fit(A)), (B, fit(B)), (C, fit(C)))

    assert [c.host for c in found.resolved.candidates] == [A, B, C]
    assert found.variants == ()


def test_one_that_differs_is_a_variant_and_comes_back_as_it_was():
    fits = {A: fit(A), B: fit(B, program="/opt/engine", gib=12), C: fit(C)}

    found = on(*fits.items())

    assert found.resolved.engine.executable == ("/engine",)
    assert [v.hosts for v in found.variants] == [(B,)]
    assert fits_of(found) == fits


def test_what_runs_most_machines_leads_and_stays_in_the_lead():
    found = on((A, fit(A)), (B, fit(B, program="/b")))
    assert found.resolved.engine.executable == ("/engine",)

    found = with_fit(found, C, fit(C, program="/b"))

    assert found.resolved.engine.executable == ("/engine",)
    assert [v.hosts for v in found.variants] == [(B, C)]


@pytest.mark.parametrize("gone", [A, B])
def test_without_a_machine_the_others_stay(gone):
    fits = {A: fit(A), B: fit(B, program="/b")}

    found = with_fit(on(*fits.items()), gone, None)

    del fits[gone]
    assert fits_of(found) == fits
    assert found.variants == ()


def test_without_any_machine_there_is_nothing():
    found = with_fit(on((A, fit(A))), A, None)

    assert found.resolved is None
    assert fits_of(found) == {}


def test_an_order_is_carried_out_as_its_place_wants_it_and_back():
    elsewhere = attrs.evolve(fit(B, program="/b"), model_path="/data/m")
    found = on((A, fit(A)), (B, elsewhere))
    begun = begin_starts(
        found,
        found.resolved,
        (instance(InstanceState.STOPPED),),
        moment(),
        cause=Cause.OPERATOR,
        deadline_at_ms=NOW_MS + 1000,
        may_evict=False,
    )
    order = begun.tell[0][1].order
    files = ModelFiles(path="/models/m", digest="sha256:" + "0" * 64)

    there = order_on(order, B)

    assert order_on(order, A) == order
    assert there.engine.executable == ("/b",)
    assert there.files == attrs.evolve(files, path="/data/m")
    back = order_on(there, A)
    assert (back.engine, back.files) == (order.engine, files)
    assert order_on(back, B).engine == there.engine


def test_hosts_are_named_by_id_or_name_and_must_have_connected():
    known = [record(A), record(B), record(C, publication=None)]

    def names(**changes):
        return [r.name for r in named_hosts(attrs.evolve(SPEC, **changes), known)]

    assert names() == ["gpu-a", "gpu-b"]
    assert names(allowed_hosts=("gpu-b", "gpu-c")) == ["gpu-b"]
    assert names(allowed_hosts=(A,)) == ["gpu-a"]


def test_a_selector_takes_machines_with_all_its_labels():
    spec = attrs.evolve(SPEC, selector={"zone": "1", "kind": "big"})
    labels = {"zone": "1", "kind": "big", "more": "x"}

    assert is_selected(spec, record(A, publication=publication(A, labels=labels)))
    assert not is_selected(spec, record(A, publication=publication(A, labels={"zone": "1"})))
    assert is_selected(SPEC, record(A))

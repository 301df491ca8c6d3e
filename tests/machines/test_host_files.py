"""A model's files on several machines, and what they come to together."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.checkpoints import (
    CheckpointRecord,
    DigestState,
    RemoteSource,
    SourceKind,
    SourceRecord,
    SourceState,
)
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import HostState
from capyctl.machines.fitting import fits_of
from capyctl.machines.host_files import (
    changed_on,
    hosts_looked_at,
    looked_at_again,
    measured_on,
    sourced_on,
    to_measure,
    unmeasured_on,
)
from capyctl.machines.start_action import check_startable
from tests.machines.machines_of import NAMES, A, B, C, fit, hosts, publication, record, shape
from tests.machines.making import FACTS, deployment

OTHER = attrs.evolve(FACTS, digest="sha256:" + "1" * 64)
THREE = hosts(record(A), record(B), record(C))


def resolver(*refusing, code="checkpoint_unusable"):
    def of(host):
        def resolve(facts):
            if host in refusing:
                raise Refused(code, "it is too large")
            return fit(host)

        return resolve

    return of


def fresh(known=THREE, **changes):
    begun = deployment(resolved=None, checkpoint=CheckpointRecord(), **changes)
    return hosts_looked_at(begun, known, resolver())


def measured(found, host, facts=FACTS, of=None):
    return measured_on(found, host, NAMES[host], facts, (of or resolver())(host))


def states(found):
    return {f.host: f.state.value for f in found.checkpoint.hosts}


def test_every_machine_that_may_run_it_is_measured():
    found = fresh()

    assert to_measure(found) == (A, B, C)
    assert found.checkpoint.state is DigestState.PENDING


def test_the_first_measurement_is_enough_to_start():
    found = measured(fresh(), B)

    assert found.checkpoint.state is DigestState.RECORDED
    assert (found.checkpoint.facts, found.checkpoint.host) == (FACTS, B)
    assert [c.host for c in found.resolved.candidates] == [B]
    assert to_measure(found) == (A, C)


def test_other_files_on_another_machine_leave_that_one_out():
    found = measured(measured(fresh(), A), B, OTHER)

    assert found.checkpoint.state is DigestState.RECORDED
    assert states(found) == {A: "recorded", B: "mismatch", C: "pending"}
    assert list(fits_of(found)) == [A]
    assert "on gpu-b the files' digest is sha256:1111" in found.checkpoint.hosts[1].detail


def test_other_files_than_the_document_expects_are_a_mismatch_everywhere():
    found = fresh(hosts(record(A), record(B)))
    expected = attrs.evolve(found.checkpoint, expected=FACTS.digest)
    found = attrs.evolve(found, checkpoint=expected)

    found = measured(measured(found, A, OTHER), B, OTHER)

    assert found.checkpoint.state is DigestState.MISMATCH
    assert found.checkpoint.facts is None
    assert "gpu-a" in found.checkpoint.detail
    assert "gpu-b" in found.checkpoint.detail


def test_a_machine_on_which_it_does_not_fit_is_left_out():
    found = measured(measured(fresh(), A, of=resolver(A)), B)

    assert states(found)[A] == "unusable"
    assert [(r.host, r.diagnostic) for r in found.refused] == [(A, "checkpoint_unusable")]
    assert list(fits_of(found)) == [B]


def test_it_is_unusable_once_no_machine_is_left_to_measure():
    found = fresh(hosts(record(A), record(B)))

    found = measured(found, A, of=resolver(A))
    assert found.checkpoint.state is DigestState.PENDING
    found = measured(found, B, of=resolver(B))

    assert found.checkpoint.state is DigestState.UNUSABLE
    assert found.checkpoint.detail == "gpu-a: it is too large; gpu-b: it is too large"


def test_a_profile_that_is_registered_later_lets_the_machine_in():
    found = measured(fresh(), A, of=resolver(A, code="profile_not_published"))
    assert [r.diagnostic for r in found.refused] == ["profile_not_published"]

    found = hosts_looked_at(found, THREE, resolver())

    assert list(fits_of(found)) == [A]
    assert found.refused == ()


def test_a_fit_stays_while_its_cards_are_there_and_its_profile_is_published():
    found = measured(fresh(), A)

    def never(host):
        raise AssertionError(f"{host} was fitted again")

    assert hosts_looked_at(found, THREE, never) == found


def test_other_cards_are_fitted_again():
    found = measured(fresh(), A)
    changed = {**THREE, A: record(A, publication=publication(A, shape=shape(A, "GPU-9")))}

    found = hosts_looked_at(found, changed, lambda host: lambda facts: fit(host, gib=5))

    assert fits_of(found)[A] == fit(A, gib=5)


def test_machines_that_may_not_run_it_any_more_are_left_out():
    found = measured(measured(fresh(), A), B)
    revoked = {**THREE, A: record(A, state=HostState.REVOKED)}

    found = hosts_looked_at(found, revoked, resolver())

    assert list(fits_of(found)) == [B]
    assert list(states(found)) == [B, C]


def lost(found, *gone, known=THREE, of=None):
    """The deployment once these machines are revoked; looked at twice, as after a restart."""
    now = {**known, **{host: record(host, state=HostState.REVOKED) for host in gone}}
    once = hosts_looked_at(found, now, of or resolver())
    assert hosts_looked_at(once, now, of or resolver()) == once
    return once


def start_of(found):
    with pytest.raises(Refused) as refused:
        check_startable(found)
    return refused.value.code, refused.value.message


def test_a_start_of_what_only_a_revoked_machine_has_is_ineligible():
    found = unmeasured_on(measured(fresh(), A), B, "invalid_root", "gpu-b: no such folder")
    found = unmeasured_on(found, C, "invalid_root", "gpu-c: no such folder")

    found = lost(found, A)

    assert [(r.host, r.diagnostic) for r in found.refused] == [(A, "revoked")]
    assert start_of(found) == (
        "host_ineligible",
        "`m` has no machine to run on: gpu-a: revoked; gpu-b: no such folder; gpu-c: no such "
        "folder",
    )


def test_a_start_of_what_has_lost_all_of_its_machines_is_ineligible():
    known = hosts(record(A))
    found = lost(measured(fresh(known), A), A, known=known)

    assert start_of(found) == (
        "host_ineligible",
        "`m` has no machine to run on: gpu-a: revoked",
    )


@pytest.mark.parametrize("diagnostic", [None, "changed", "io_error", "host_unavailable"])
def test_a_machine_that_may_turn_out_to_have_it_is_waited_for(diagnostic):
    found = measured(fresh(hosts(record(A), record(B))), A)
    if diagnostic is not None:
        found = unmeasured_on(found, B, diagnostic, "gpu-b: it is being written")

    found = lost(found, A, known=hosts(record(A), record(B)))

    assert start_of(found)[0] == "checkpoint_digest_pending"


def test_a_machine_that_cannot_run_it_leaves_it_ineligible():
    found = measured(fresh(hosts(record(A), record(B))), A)
    lacking = resolver(B, code="profile_not_published")
    found = measured(found, B, of=lacking)

    found = lost(found, A, known=hosts(record(A), record(B)), of=lacking)

    assert start_of(found)[0] == "host_ineligible"


def test_files_that_differ_elsewhere_stay_what_is_said():
    """They may be restored, and are measured again for that."""
    found = measured(measured(fresh(hosts(record(A), record(B))), A), B, OTHER)

    found = lost(found, A, known=hosts(record(A), record(B)))

    assert start_of(found)[0] == "checkpoint_mismatch"


def test_a_revoked_machine_that_could_not_run_it_is_not_spoken_of():
    found = unmeasured_on(fresh(), A, "invalid_root", "gpu-a: no such folder")

    assert lost(found, A).refused == ()


def test_a_machine_that_is_taken_back_is_measured_and_runs_it():
    found = lost(measured(fresh(), A), A)

    found = hosts_looked_at(found, THREE, resolver())

    assert found.refused == ()
    assert A in to_measure(found)
    assert check_startable(measured(found, A)).candidates[0].host == A


def test_labels_that_do_not_match_are_told():
    spec = attrs.evolve(deployment().spec, selector={"zone": "1"})
    known = {**THREE, B: record(B, publication=publication(B, labels={"zone": "1"}))}

    found = fresh(known, spec=spec)

    assert list(states(found)) == [B]
    assert {(r.host, r.diagnostic) for r in found.refused} == {
        (A, "selector_mismatch"),
        (C, "selector_mismatch"),
    }


def test_why_nothing_is_measured_is_told_with_the_machine():
    found = unmeasured_on(fresh(), B, "invalid_root", "gpu-b: no such folder")

    assert found.checkpoint.diagnostic == "invalid_root"
    assert found.checkpoint.detail == "gpu-b: no such folder"
    assert unmeasured_on(measured(found, B), B, "io_error", "late") == measured(found, B)


def test_downloads_come_to_the_one_that_a_start_waits_for():
    source = RemoteSource(kind=SourceKind.HTTP, key="k")
    found = fresh(spec=attrs.evolve(deployment().spec, source=source))

    def moved(found, host, state, bytes_done=0, **more):
        record = SourceRecord(host=host, state=state, bytes_done=bytes_done, **more)
        return sourced_on(found, record)

    failed = moved(found, A, SourceState.FAILED, terminal=True, reason="denied: no")
    assert failed.checkpoint.source.host == A
    assert failed.checkpoint.diagnostic == "not_materializable"
    coming = moved(failed, B, SourceState.DOWNLOADING, 5)
    assert coming.checkpoint.source.host == B
    assert moved(coming, C, SourceState.VERIFIED, 9).checkpoint.source.host == C


def test_files_that_changed_on_one_machine_leave_that_one_out_until_they_are_restored():
    found = measured(measured(fresh(), A), B)

    changed = changed_on(found, A, "the digest is another one")

    assert states(changed) == {A: "mismatch", B: "recorded", C: "pending"}
    assert list(fits_of(changed)) == [B]
    again = looked_at_again(changed)
    assert to_measure(again) == (A, C)
    assert fits_of(measured(again, A)).keys() == {A, B}

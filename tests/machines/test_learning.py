"""What a deployment takes over from its instances, and what that changes for later starts."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.checkpoints import DigestState
from capyctl.domain.ids import InstanceId
from capyctl.domain.launches import Installation, ModelFiles
from capyctl.domain.specs import Measured, Phase
from capyctl.domain.units import GIB
from capyctl.machines import switch as sw
from capyctl.machines.actions import decide
from capyctl.machines.checkpoint import measured
from capyctl.machines.instance import Failure
from capyctl.machines.instance import InstanceState as S
from capyctl.machines.instance_table import step
from capyctl.machines.learning import files_changed, learn
from capyctl.machines.replacing import decide_replace
from capyctl.machines.start_action import NeedFit
from capyctl.messages import instance as m
from capyctl.messages.deployment import ActionKind, FitAnswered, ReceiptKey, Replace
from tests.machines.making import (
    DEPLOYMENT,
    FACTS,
    HOST,
    LAUNCH,
    ONE,
    RESOLVED,
    SPEC,
    act,
    deployment,
    instance,
    moment,
    picture,
    record,
    start,
)

SEEN = Measured(host=HOST, peak={"gpu0": 15 * GIB}, residue={"gpu0": 3 * GIB})


def started(peak, **changes):
    one = instance(S.STARTING, **changes)
    told = m.EngineAnswered(launch=LAUNCH, canary="x", peak=peak)
    return step(one, told, moment()).data


def test_the_peak_of_a_start_is_kept_with_the_engine_it_was_of():
    launch = attrs.evolve(record(), installation=Installation(registered="a", observed="b"))

    one = started({"gpu0": 15 * GIB}, launch=launch)

    assert one.seen == Measured(host=HOST, installation="b", peak={"gpu0": 15 * GIB})


def test_a_start_that_could_not_be_measured_keeps_nothing():
    assert started({}).seen is None


def test_figures_are_taken_over_once():
    one = instance(S.READY, seen=SEEN)

    taken = learn(picture(one))

    assert taken.deployment.measured == (SEEN,)
    assert learn(picture(one, measured=(SEEN,))) is None


def test_figures_of_an_earlier_revision_are_not():
    assert learn(picture(instance(S.READY, seen=SEEN), measured_since=2)) is None


@pytest.mark.parametrize("state", [S.STOPPED, S.FAILED])
def test_a_start_of_another_revision_has_not_been_seen_yet(state):
    """What a launch of the old document took would be charged for the new one."""
    before = instance(state, seen=SEEN, revision=1)

    same = step(before, start(revision=1), moment()).data
    other = step(before, start(revision=2), moment()).data

    assert learn(picture(same)).deployment.measured == (SEEN,)
    assert learn(picture(other, measured_since=2)) is None


def test_later_starts_are_charged_by_them():
    known = picture(instance(S.STOPPED), measured=(SEEN,))
    told = act(ActionKind.START)

    asked = decide(known, told, moment())
    assert isinstance(asked, NeedFit)
    fit = FitAnswered(request="r", fitting=(0,), shortage=None)
    accepted = decide(known, told, moment(), fit=fit)
    ((_, begun),) = accepted.tell

    for candidates in (asked.questions[0].candidates, begun.order.candidates):
        assert dict(candidates[0].charges.of(Phase.COLD)) == {"gpu0": 15 * GIB}
        assert dict(candidates[0].charges.of(Phase.PARKED)) == {"gpu0": 3 * GIB}
    assert begun.order.files == ModelFiles(path="/models/m", digest=FACTS.digest)


@pytest.mark.parametrize(
    ("changes", "kept"), [({"instances": 2}, (SEEN,)), ({"model_path": "/models/n"}, ())]
)
def test_a_replace_begins_anew_unless_only_the_count_changes(changes, kept):
    replace = Replace(
        spec=attrs.evolve(SPEC, **changes),
        expected_revision=1,
        receipt=ReceiptKey(scope="s", key="k", fingerprint="f"),
    )

    after = decide_replace(picture(instance(S.STOPPED), measured=(SEEN,)), replace, moment())

    assert after.deployment.measured == kept


# -- files -----------------------------------------------------------------------------------

CHANGED = Failure("checkpoint_mismatch", "the files' digest is sha256:1, measured was sha256:0")
OTHER = attrs.evolve(FACTS, digest="sha256:" + "1" * 64)


def test_changed_files_make_a_mismatch_until_they_are_restored():
    after = files_changed(deployment(), instance(S.FAILED, failure=CHANGED)).deployment
    still = measured(after, OTHER, lambda _: RESOLVED)
    restored = measured(after, FACTS, lambda _: RESOLVED)

    assert after.checkpoint.state is DigestState.MISMATCH
    assert after.checkpoint.diagnostic == "checkpoint_mismatch"
    assert "restore the files" in after.checkpoint.detail
    assert after.resolved is None
    assert still.checkpoint.state is DigestState.MISMATCH
    assert "measured before was" in still.checkpoint.detail
    assert restored.checkpoint.state is DigestState.RECORDED
    assert restored.resolved == RESOLVED


@pytest.mark.parametrize(
    ("failure", "changes"),
    [
        (None, {}),
        (Failure("launch_failed", "x"), {}),
        (CHANGED, {"measured_since": 2}),
    ],
)
def test_other_failures_and_earlier_revisions_say_nothing_of_the_files(failure, changes):
    assert files_changed(deployment(**changes), instance(S.FAILED, failure=failure)) is None


def test_a_launch_on_changed_files_gives_its_memory_back_for_good():
    refused = m.LaunchNotPrepared(
        launch=LAUNCH, code="checkpoint_mismatch", detail="x", permanent=True
    )

    done = step(instance(S.STARTING, launch=None), refused, moment())

    assert done.data.state is S.FAILED
    assert done.data.held is None
    assert done.data.operation.given_up
    assert done.data.operation.error_code == "checkpoint_mismatch"


@pytest.mark.parametrize("flag", [True, False])
def test_a_changed_engine_is_told_of_as_it_is_launched(flag):
    installation = Installation(registered="a", observed="b", flag=flag)
    launched = attrs.evolve(record(), installation=installation)

    done = step(instance(S.STARTING, launch=None), m.LaunchPrepared(record=launched), moment())

    told = [e for e in done.events if e.kind == "installation_drift_flagged"]
    assert [e.payload for e in told] == (
        [
            {
                "host_id": "host",
                "installation": "p",
                "registered_digest": "a",
                "observed_digest": "b",
            }
        ]
        if flag
        else []
    )


# -- how victims gave way --------------------------------------------------------------------

SECOND = InstanceId(DEPLOYMENT, 1)


def switched(*gone):
    victims = tuple(sw.Victim(instance=one, stop=False, windowed=False) for one, _ in gone)
    switch = sw.open_switch(
        id="W", target=InstanceId("T", 0), ask="a", host=HOST, victims=victims, explicit=False
    )
    for one, how in gone:
        switch = sw.advance(switch, sw.VictimGone(one, how))
    return switch


@pytest.mark.parametrize(
    ("gone", "detail"),
    [
        ([(ONE, "parked")], "released: parked"),
        ([(ONE, sw.stopped(None))], "released: stopped"),
        ([(ONE, sw.stopped("no room to park"))], "released: stopped (no room to park)"),
        (
            [(ONE, "parked"), (SECOND, sw.stopped("host RAM full"))],
            f"released: {ONE} parked, {SECOND} stopped (host RAM full)",
        ),
    ],
)
def test_the_record_of_a_switch_says_how_its_victims_gave_way(gone, detail):
    done = switched(*gone)

    assert done.state is sw.SwitchState.RELEASED
    assert sw.switch_event(done).payload["detail"] == detail


def test_a_victim_that_goes_twice_counts_once():
    once = switched((ONE, "parked"))

    assert sw.advance(once, sw.VictimGone(ONE, "stopped")) == once

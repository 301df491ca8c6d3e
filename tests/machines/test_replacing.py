"""A new document: refused, or a new revision and what restarts for it."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.checkpoints import CheckpointRecord
from capyctl.domain.errors import Refused
from capyctl.domain.operations import OperationKind as K
from capyctl.domain.operations import OperationState as O
from capyctl.machines.deployment import Restart
from capyctl.machines.instance import InstanceState as S
from capyctl.machines.replacing import decide_replace
from capyctl.messages.deployment import ReceiptKey, Replace
from tests.machines import making
from tests.machines.making import instance, moment, pending, picture

RESTARTABLE = {S.STOPPED, S.FAILED, S.READY, S.PARKED, S.QUEUED}


def replace(count: int = 1, revision: int = 1, **changes) -> Replace:
    spec = attrs.evolve(making.SPEC, instances=count, **changes)
    receipt = ReceiptKey(scope="replace:x", key="k", fingerprint="f")
    return Replace(spec=spec, expected_revision=revision, receipt=receipt)


def test_another_revision_is_a_conflict():
    with pytest.raises(Refused) as refused:
        decide_replace(picture(), replace(revision=2), moment())

    assert refused.value.code == "revision_conflict"


@pytest.mark.parametrize("state", list(S))
def test_only_the_count_leaves_what_runs_as_it_is(state):
    found = decide_replace(picture(instance(state)), replace(count=3), moment())

    assert found.deployment.revision == 2
    assert found.deployment.resolved is not None
    assert found.deployment.restarts == ()


@pytest.mark.parametrize("state", list(S))
def test_between_two_states_nothing_is_replaced(state):
    seen = picture(instance(state))
    if state in RESTARTABLE:
        assert decide_replace(seen, replace(engine_part="new"), moment()).answers
        return
    with pytest.raises(Refused) as refused:
        decide_replace(seen, replace(engine_part="new"), moment())

    assert refused.value.code == "runtime_retained"


@pytest.mark.parametrize("kind", [K.PARK, K.CLEANUP])
def test_accepted_work_that_is_not_begun_retains_it_too(kind):
    begun = pending(kind)
    seen = picture(instance(S.READY), operations={begun.id: begun})

    with pytest.raises(Refused) as refused:
        decide_replace(seen, replace(engine_part="new"), moment())

    assert refused.value.code == "runtime_retained"


def test_what_ran_is_started_again_and_the_files_are_measured_anew():
    seen = picture(
        instance(S.READY), instance(S.PARKED, 1), instance(S.STOPPED, 2), instance(S.QUEUED, 3)
    )

    found = decide_replace(seen, replace(count=4, engine_part="new"), moment())

    assert found.deployment.restarts == (
        Restart(index=0, was_ready=True),
        Restart(index=1, was_ready=False),
        Restart(index=3, was_ready=True),
    )
    assert found.deployment.checkpoint == CheckpointRecord()
    assert found.deployment.resolved is None
    assert [event.kind for event in found.events] == ["managed_configuration_accepted"]


def test_a_start_that_is_accepted_and_not_begun_is_of_the_old_document():
    """Without this it would run on the old revision, and nobody would restart it."""
    begun = pending(K.INITIALIZE)
    seen = picture(operations={begun.id: begun})

    found = decide_replace(seen, replace(engine_part="new"), moment())

    assert found.deployment.restarts == (Restart(index=0, was_ready=True),)


def test_what_an_earlier_replace_owes_is_still_owed():
    seen = picture(instance(S.STOPPED), restarts=(Restart(index=0, was_ready=True),))

    found = decide_replace(seen, replace(engine_part="new"), moment())

    assert found.deployment.restarts == (Restart(index=0, was_ready=True),)


def test_a_preinitialize_of_the_old_document_ends():
    operation = pending(K.PREINITIALIZE, None)

    found = decide_replace(picture(preinitialize=operation), replace(engine_part="new"), moment())

    assert {o.id: o.state for o in found.operations}[operation.id] is O.CANCELLED
    assert found.deployment.preinitialize is None

"""A start in line takes in machines that are measured while it waits."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.ids import HostId
from capyctl.machines.instance import InstanceState as S
from capyctl.machines.instance import WidenMemory
from capyctl.machines.instance_table import step
from capyctl.machines.widening import more_places_for
from capyctl.messages.instance import MorePlaces
from tests.machines.making import ASK, CANDIDATE, RESOLVED, instance, moment, picture

OTHER = attrs.evolve(CANDIDATE, host=HostId("other"))
BOTH = attrs.evolve(RESOLVED, candidates=(CANDIDATE, OTHER))


def test_it_is_told_of_a_machine_that_it_does_not_know():
    seen = picture(instance(S.QUEUED), instance(S.READY, index=1), resolved=BOTH)

    ((index, message),) = more_places_for(seen)

    assert index == 0
    assert message.candidates == (CANDIDATE, OTHER)


@pytest.mark.parametrize("state", [s for s in S if s is not S.QUEUED])
def test_what_is_not_in_line_for_a_first_place_is_not_told(state):
    assert more_places_for(picture(instance(state), resolved=BOTH)) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"resolved": RESOLVED},
        {"resolved": None},
        {"resolved": BOTH, "revision": 2},
    ],
    ids=["nothing new", "not known", "another revision"],
)
def test_nothing_is_told_where_nothing_is_gained(changes):
    assert more_places_for(picture(instance(S.QUEUED), **changes)) == ()


def more(revision: int = 1) -> MorePlaces:
    return MorePlaces(revision=revision, candidates=(CANDIDATE, OTHER), files=None, variants=())


def test_it_stays_in_line_under_its_request_and_knows_of_both():
    one = instance(S.QUEUED)

    done = step(one, more(), moment())

    assert done.data == attrs.evolve(
        one, order=attrs.evolve(one.order, candidates=(CANDIDATE, OTHER))
    )
    assert done.effects == (WidenMemory(ASK),)
    assert step(done.data, more(), moment()).data == done.data
    assert more_places_for(picture(done.data, resolved=BOTH)) == ()


def test_between_two_attempts_it_only_remembers():
    one = instance(S.QUEUED, ask=None)

    done = step(one, more(), moment())

    assert done.data.order.candidates == (CANDIDATE, OTHER)
    assert done.effects == ()


def test_places_of_another_revision_are_not_its_own():
    one = instance(S.QUEUED)

    assert step(one, more(revision=2), moment()).data == one

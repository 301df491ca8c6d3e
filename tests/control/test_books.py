"""What placement's books become when its actor restarts: what the instances' records show."""

from __future__ import annotations

import attrs
import pytest

from capyctl.control.books import Books, Waiting, entry_of, reserve_for
from capyctl.control.directory import Directory
from capyctl.control.occupancy import occupancy
from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.domain.specs import Phase
from capyctl.ledger.ledger import Entry, hold, open_ledger
from capyctl.machines.instance import InstanceState as S
from tests.ledger.machines import shape_of
from tests.machines.making import ASK, CANDIDATE, DEPLOYMENT, HOST, SPEC, deployment, instance

SHAPE = attrs.evolve(shape_of(1), host=HOST)
OLD_ASK = "an earlier request"
SHOWN = [s for s in S if instance(s).held is not None]


def granted(phase: Phase, ask: str = OLD_ASK) -> Entry:
    """What is booked from the grant of a start or wake until the next phase is confirmed."""
    parked = entry_of(instance(S.PARKED))
    made = attrs.evolve(parked, phase=phase, charges=CANDIDATE.charges.of(phase), ask=ask)
    return attrs.evolve(made, before=parked) if phase is Phase.WAKE else made


def restarted(entry: Entry, one) -> Books:
    """Books that hold ``entry`` when the actor comes back to ``one``'s record."""
    books = Books(ledger=hold(open_ledger((SHAPE,)), entry))
    directory = Directory()
    directory.instances[DEPLOYMENT] = {one.id.index: one}
    books.reconcile(directory)
    return books


@pytest.mark.parametrize("phase", [Phase.COLD, Phase.WAKE])
@pytest.mark.parametrize("state", SHOWN)
def test_what_an_instance_went_on_to_is_charged_though_it_was_not_told(phase, state):
    """The word on the later phase went down with the actor, however far the instance has come."""
    one = instance(state, ask=None)
    books = restarted(granted(phase), one)

    found = books.ledger.entries[one.id]

    assert (found.phase, found.charges) == (one.held.phase, one.held.charges)
    assert (found.ask, found.before) == (None, None)
    assert books.line == {}


@pytest.mark.parametrize("phase", [Phase.COLD, Phase.WAKE])
def test_a_grant_that_is_on_its_way_stays(phase):
    one = instance(S.QUEUED if phase is Phase.COLD else S.WAKE_QUEUED)
    entry = granted(phase, ask=one.ask)

    books = restarted(entry, one)

    assert books.ledger.entries == {one.id: entry}
    assert books.line == {}


@pytest.mark.parametrize("state", [S.STOPPED, S.FAILED, S.QUEUED])
def test_a_grant_that_nobody_waits_for_goes(state):
    one = instance(state)

    books = restarted(granted(Phase.COLD), one)

    assert books.ledger.entries == {}
    assert set(books.line) == ({ASK} if state is S.QUEUED else set())


def test_a_wake_that_was_given_up_and_asked_for_again_is_back_in_line_and_parked():
    one = instance(S.WAKE_QUEUED)

    books = restarted(granted(Phase.WAKE), one)

    assert books.ledger.entries[one.id].phase is Phase.PARKED
    assert [w.reserve for w in books.line.values()] == [reserve_for(one)]


def test_who_is_in_line_is_there_with_the_places_of_its_record():
    """News of more places may have gone down with the actor."""
    one = instance(S.QUEUED)
    books = Books(ledger=open_ledger((SHAPE,)))
    books.line[ASK] = Waiting(reserve=attrs.evolve(reserve_for(one), candidates=()))
    directory = Directory()
    directory.instances[DEPLOYMENT] = {one.id.index: one}

    books.reconcile(directory)

    assert [w.reserve for w in books.line.values()] == [reserve_for(one)]


@pytest.mark.parametrize("state", list(S))
def test_who_may_be_moved_is_what_the_records_show(state):
    """News of an instance that came up, or went, may have gone down with the actor."""
    one = instance(state)
    directory = Directory()
    directory.deployments[DEPLOYMENT] = deployment()
    directory.instances[DEPLOYMENT] = {one.id.index: one}
    deleted = InstanceId(DeploymentId("deleted"), 0)
    books = Books(ledger=open_ledger((SHAPE,)))
    for id in (one.id, deleted):
        stale = occupancy(attrs.evolve(instance(S.STARTING), id=id), SPEC, elsewhere=False)
        books.occupancy[id] = stale

    books.reconcile(directory)

    assert {id: told.state for id, told in books.occupancy.items()} == {one.id: state.value}

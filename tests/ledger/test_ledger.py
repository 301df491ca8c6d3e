"""The books: never more than there is, whatever is granted, withdrawn, charged and freed."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from capyctl.domain.devices import MemorySample
from capyctl.domain.ids import DomainName
from capyctl.domain.specs import Phase
from capyctl.domain.units import GIB
from capyctl.ledger.ledger import (
    Entry,
    charge,
    foreign_bytes,
    free,
    hold,
    open_ledger,
    shortage,
    withdraw,
)
from capyctl.ledger.places import Wanted
from capyctl.ledger.plan import Fits, commit, plan
from tests.ledger.machines import CARD_GIB, HOST, RAM, charges, id_of, places, shape_of

SHAPE = shape_of(2)
CARD = SHAPE.gpus[0].domain
POOL = (HOST, CARD)


class Books(RuleBasedStateMachine):
    """Placement's ledger, under any order of what its instances tell."""

    def __init__(self):
        super().__init__()
        self.ledger = open_ledger((SHAPE,))
        self.before = {}
        self.asks_count = 0

    @rule(number=st.integers(0, 6), gib=st.integers(1, CARD_GIB))
    def reserve(self, number, gib):
        id = id_of(number)
        known = self.ledger.entries.get(id)
        if known is not None and known.phase is not Phase.PARKED:
            return
        phase = Phase.COLD if known is None else Phase.WAKE
        wanted = Wanted(instance=id, phase=phase, candidates=places(SHAPE, gib))
        found = plan(self.ledger, wanted, {}, may_evict=False)
        if isinstance(found, Fits):
            self.asks_count += 1
            ask = f"a{self.asks_count}"
            self.before[id] = (ask, self.ledger.entries)
            self.ledger = commit(self.ledger, wanted, found, ask=ask)

    @precondition(lambda self: self.before)
    @rule(data=st.data())
    def take_back(self, data):
        """A withdrawn grant leaves nothing behind, and takes nothing away."""
        id = data.draw(st.sampled_from(sorted(self.before)))
        ask, then = self.before.pop(id)
        entry = self.ledger.entries.get(id)
        granted = entry is not None and entry.ask == ask
        self.ledger = withdraw(self.ledger, id, ask)
        if granted:
            assert self.ledger.entries.get(id) == then.get(id)
        else:
            assert self.ledger.entries.get(id) == entry

    @precondition(lambda self: self.ledger.entries)
    @rule(
        data=st.data(),
        phase=st.sampled_from([Phase.READY, Phase.PARKED, Phase.PARKING]),
        gib=st.integers(0, 99),
        ram_gib=st.integers(0, 99),
    )
    def charge(self, data, phase, gib, ram_gib):
        id = data.draw(st.sampled_from(sorted(self.ledger.entries)))
        entry = self.ledger.entries[id]
        card = next(name for name in entry.charges if name != RAM) if entry.charges else CARD
        wanted = {card: gib * GIB, RAM: ram_gib * GIB}
        self.ledger = charge(self.ledger, id, phase, wanted)
        kept = self.ledger.entries[id]
        assert kept.ask is None
        assert all(kept.charges[name] <= wanted[name] for name in wanted)

    @precondition(lambda self: self.ledger.entries)
    @rule(data=st.data())
    def free(self, data):
        id = data.draw(st.sampled_from(sorted(self.ledger.entries)))
        self.ledger = free(self.ledger, id)
        assert id not in self.ledger.entries

    @invariant()
    def never_more_than_there_is(self):
        for pool, domain in self.ledger.pools.items():
            assert 0 <= self.ledger.charged_bytes(pool) <= domain.managed_limit_bytes


TestBooks = pytest.mark.slow(Books.TestCase)
TestBooks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def entry(gib: int, number: int = 0, **changes) -> Entry:
    return Entry(
        instance=id_of(number),
        host=HOST,
        phase=changes.pop("phase", Phase.READY),
        charges=charges(CARD, gib).ready,
        **changes,
    )


def test_more_than_there_is_cannot_be_written_down():
    ledger = hold(open_ledger((SHAPE,)), entry(20))

    with pytest.raises(AssertionError, match="gpu0 of host is overbooked"):
        hold(ledger, entry(5, 1))


def test_each_change_is_another_version():
    ledger = open_ledger((SHAPE,))
    held = hold(ledger, entry(1))

    assert held.version == ledger.version + 1
    assert free(held, id_of(0)).version == held.version + 1
    assert free(held, id_of(7)) is held


def test_an_answer_to_an_earlier_request_withdraws_nothing():
    ledger = hold(open_ledger((SHAPE,)), entry(1, ask="new"))

    assert withdraw(ledger, id_of(0), "old") is ledger


def test_a_withdrawn_wake_is_parked_again():
    parked = entry(1, phase=Phase.PARKED)
    ledger = hold(open_ledger((SHAPE,)), entry(10, phase=Phase.WAKE, ask="a", before=parked))

    assert withdraw(ledger, id_of(0), "a").entries == {id_of(0): parked}


def test_nothing_is_charged_that_was_never_granted():
    with pytest.raises(AssertionError, match="holds nothing"):
        charge(open_ledger((SHAPE,)), id_of(0), Phase.READY, {})


@pytest.mark.parametrize(
    ("used_gib", "foreign_gib"), [(0, 0), (10, 0), (12, 2), (24, 14), (9.5, 0)]
)
def test_only_what_no_charge_explains_belongs_to_others(used_gib, foreign_gib):
    """Ten of the card are charged."""
    ledger = hold(open_ledger((SHAPE,)), entry(10))
    available = {CARD: round((CARD_GIB - used_gib) * GIB), RAM: 0}
    sample = MemorySample(at_s=0.0, available_bytes=available)

    found = foreign_bytes(ledger, {HOST: sample})

    assert found[POOL] == foreign_gib * GIB
    assert (HOST, RAM) not in found, "host RAM is everybody's"


def test_a_card_that_was_not_seen_is_nobodys():
    sample = MemorySample(at_s=0.0, available_bytes={DomainName("gpu1"): GIB})

    assert POOL not in foreign_bytes(open_ledger((SHAPE,)), {HOST: sample})


def test_a_shortage_has_the_figures():
    ledger = hold(open_ledger((SHAPE,)), entry(20))

    short = shortage(ledger, HOST, charges(CARD, 5).cold)

    assert (short.need_bytes, short.available_bytes) == (5 * GIB, 4 * GIB)
    assert short.domain.name == CARD


def test_what_is_replaced_does_not_stand_in_its_own_way():
    ledger = hold(open_ledger((SHAPE,)), entry(20))

    assert shortage(ledger, HOST, charges(CARD, 24).ready, replaces=id_of(0)) is None

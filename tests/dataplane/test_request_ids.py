"""Ids of requests, ours and the clients'."""

import pytest
from ulid import ULID

from capyctl.dataplane.request_ids import RequestIds, echoed


def test_fresh_ids_are_ulids_that_rise():
    ids = RequestIds()
    made = [ids.fresh().decode() for _ in range(5000)]
    assert made == sorted(set(made))
    assert all(str(ULID.from_str(text)) == text for text in made)
    first, last = ULID.from_str(made[0]), ULID.from_str(made[-1])
    assert 0 <= last.timestamp - first.timestamp < 60


def test_two_makers_differ():
    assert RequestIds().fresh()[10:] != RequestIds().fresh()[10:]


def test_a_full_counter_goes_on_in_the_next_millisecond():
    ids = RequestIds()
    before = ids.fresh()
    ids._now_ms += 10_000
    ids._counter = 1 << 20
    after = [ids.fresh() for _ in range(3)]
    assert [before, *after] == sorted({before, *after})


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (b"a", True),
        (b"!~" * 64, True),
        (b"", False),
        (b"a b", False),
        (b"a" * 129, False),
        (b"\x7f", False),
        (None, False),
    ],
)
def test_which_client_ids_are_echoed(value, kept):
    assert echoed(value) == (value if kept else None)

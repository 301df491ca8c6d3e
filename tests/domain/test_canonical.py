"""Canonical JSON: one text for one value."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.domain.canonical import canonical_json

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_keys_are_sorted_and_nothing_is_spaced():
    assert canonical_json({"b": [1, None], "a": {"é": True}}) == '{"a":{"é":true},"b":[1,null]}'


@pytest.mark.slow
@given(json_values)
def test_it_reads_back_and_does_not_depend_on_order(value):
    text = canonical_json(value)

    assert json.loads(text) == value
    assert canonical_json(json.loads(text, object_pairs_hook=lambda p: dict(reversed(p)))) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_have_are_refused(value):
    with pytest.raises(ValueError):
        canonical_json({"x": value})


def test_other_objects_are_refused():
    with pytest.raises(TypeError):
        canonical_json({"x": {1, 2}})

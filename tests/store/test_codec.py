"""Records come back exactly, and nothing stored is dropped in silence."""

from __future__ import annotations

import enum
import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, NewType

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capyctl.domain.canonical import canonical_json
from capyctl.domain.certificates import IssuedCertificate
from capyctl.domain.hosts import HostRecord, Invitation
from capyctl.domain.operations import Operation
from capyctl.machines.deployment import Deployment
from capyctl.machines.instance import Instance
from capyctl.store.batch import (
    CERTIFICATES,
    DEPLOYMENTS,
    HOSTS,
    INSTANCES,
    INVITATIONS,
    OPERATIONS,
)
from capyctl.store.codec import Codec
from capyctl.store.errors import RecordUnreadable
from tests.store.making import operation

CODECS = {
    Operation: OPERATIONS,
    Instance: INSTANCES,
    Deployment: DEPLOYMENTS,
    HostRecord: HOSTS,
    Invitation: INVITATIONS,
    IssuedCertificate: CERTIFICATES,
}
PLAIN: dict[Any, st.SearchStrategy] = {
    str: st.text(max_size=6),
    int: st.integers(-(2**53), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    types.NoneType: st.none(),
    object: st.recursive(
        st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=3),
        lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=3,
    ),
}


def values(kind: Any) -> st.SearchStrategy:
    """Any value of an annotated type, as records use them."""
    if kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, NewType):
        return values(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    if isinstance(kind, type) and attrs.has(kind):
        return records(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and inner[1:] == (...,):
        return st.lists(values(inner[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, inner))
    if origin is frozenset:
        return st.frozensets(values(inner[0]), max_size=2)
    if origin in (Mapping, dict):
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=2)
    assert origin in (typing.Union, types.UnionType), kind
    return st.one_of(*map(values, inner))


@functools.cache
def records(kind: type) -> st.SearchStrategy:
    """One for each class, so that a record may hold others of its own kind."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in attrs.fields(kind) if field.init}
    return st.builds(
        kind, **{name: st.deferred(lambda h=h: values(h)) for name, h in fields.items()}
    )


@pytest.mark.parametrize("kind", CODECS, ids=lambda kind: kind.__name__)
@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_every_record_comes_back_exactly(kind, data):
    record = data.draw(records(kind))

    text = CODECS[kind].to_text(record)
    assert CODECS[kind].from_text(text, row="r") == record
    assert CODECS[kind].to_text(CODECS[kind].from_text(text, row="r")) == text


def test_the_text_is_canonical():
    text = OPERATIONS.to_text(attrs.evolve(operation(1), reason='é "quoted"'))

    assert text == canonical_json(json.loads(text))


@attrs.frozen(kw_only=True)
class Inner:
    size: int


@attrs.frozen(kw_only=True)
class Sample:
    name: str
    inner: tuple[Inner, ...] = ()
    labels: Mapping[str, str] = attrs.field(factory=dict)
    added: int | None = 7
    """As if a later version had added it."""


SAMPLES = Codec(Sample, table="samples")


def test_a_field_that_was_added_later_is_filled_from_its_default():
    found = SAMPLES.from_text('{"inner":[],"labels":{"a":"b"},"name":"x"}', row="r")

    assert found == Sample(name="x", labels={"a": "b"}, added=7)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name":"x","gone":1}', r"unknown stored field \$\.gone"),
        ('{"name":"x","inner":[{"size":1},{"size":2,"gone":3}]}', r"\$\.inner\[1\]\.gone"),
        ('{"inner":[]}', "missing required field `name`"),
        ('{"name":5}', "Expected `str`"),
        ('{"name":"x"', "truncated"),
        ("", "truncated"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_the_row(text, problem):
    with pytest.raises(RecordUnreadable, match=problem) as unreadable:
        SAMPLES.from_text(text, row="r1")

    assert "table samples, row r1" in str(unreadable.value)

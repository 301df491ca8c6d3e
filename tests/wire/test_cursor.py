"""Cursors and queries, as strict as the contract has them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.domain.errors import Refused
from capyctl.domain.events import Cursor
from capyctl.wire.cursor import SEQ_MAX, asked_cursor, read_cursor
from capyctl.wire.query import read_query

ULID = "01M5E0M1C4VQT1DXDZNMJ75NRN"


@given(st.integers(min_value=0, max_value=SEQ_MAX))
def test_what_is_written_is_read(seq):
    cursor = Cursor(incarnation=ULID, seq=seq)

    assert read_cursor(str(cursor)) == cursor
    assert len(str(cursor)) <= 46


@given(st.text(alphabet=f"{ULID}:0 \n+-٣", max_size=48))
def test_what_is_read_has_no_other_spelling(text):
    with contextlib.suppress(Refused):
        assert str(read_cursor(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", ":", f"{ULID}:", f"{ULID}:01", f"{ULID}:1\n", f"{ULID}:{SEQ_MAX + 1}", f"{ULID}:٣"],
)
def test_a_malformed_cursor_is_refused(text):
    with pytest.raises(Refused) as problem:
        read_cursor(text)

    assert problem.value.code == "invalid_cursor"


def test_without_a_cursor_there_is_none():
    assert asked_cursor(b"", []) is None


def test_a_plus_is_a_plus():
    assert read_query(b"after=a+b%2Bc", ("after",)) == {"after": "a+b+c"}


@pytest.mark.parametrize(
    "raw", [b"%61fter=1&after=1", b"after=%C3", b"after=%zz", b"after=1&", b"=1", b"after\xff=1"]
)
def test_a_broken_query_is_refused(raw):
    with pytest.raises(Refused) as problem:
        read_query(raw, ("after",), code="invalid_cursor")

    assert problem.value.code == "invalid_cursor"


def test_an_escaped_key_is_the_key():
    assert read_query(b"%61fter=1", ("after",)) == {"after": "1"}

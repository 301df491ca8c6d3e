from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.domain.errors import Refused
from capyctl.wire.strict_json import read_json

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(VALUES, st.booleans())
def test_every_value_comes_back(value, ascii_only):
    assert read_json(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"a":1,"a":2}', "same key twice"),
        (b'{"a":1,"\\u0061":2}', "same key twice"),
        (b'[{"b":{"a":1,"a":1}}]', "same key twice"),
        (b"NaN", "not a number"),
        (b'{"a":Infinity}', "not a number"),
        (b"[-Infinity]", "not a number"),
        (b"[1e999]", "too large"),
        (b"{} {}", "not one JSON value"),
        (b"", "not one JSON value"),
        (b"{", "not one JSON value"),
        (b"[1,]", "not one JSON value"),
        (b"\xef\xbb\xbf{}", "not one JSON value"),
        (b"1" * 5000, "not one JSON value"),
        (b'"\xff"', "not UTF-8"),
        (b'"\\ud800"', "not UTF-8"),
        (b'{"\\udfff":1}', "not UTF-8"),
        (b"[" * 129 + b"]" * 129, "128 levels"),
        (b'{"a":' * 129 + b"1" + b"}" * 129, "128 levels"),
        (b"[" * 100_000 + b"]" * 100_000, "128 levels"),
    ],
)
def test_what_is_not_strict_is_refused(body, words):
    with pytest.raises(Refused) as refused:
        read_json(body)

    assert refused.value.code == "invalid_request"
    assert words in refused.value.message


def test_128_levels_are_accepted():
    assert read_json(b"[" * 128 + b"]" * 128) is not None


def test_a_pair_of_surrogates_is_one_character():
    assert read_json(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


def test_the_size_is_bounded():
    assert read_json(b'"' + b"a" * 8 + b'"', bytes_max=10) == "a" * 8
    with pytest.raises(Refused) as refused:
        read_json(b'"' + b"a" * 9 + b'"', bytes_max=10)
    assert refused.value.code == "body_too_large"


def test_a_refusal_never_shows_what_was_written():
    with pytest.raises(Refused) as refused:
        read_json(b'{"secret-key":1,"secret-key":"hunter2"}')

    assert "secret" not in str(refused.value)

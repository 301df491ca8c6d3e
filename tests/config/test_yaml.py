from __future__ import annotations

import json

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from capyctl.config.problems import InvalidDocument
from capyctl.config.yaml import read_scalar, read_text, read_yaml

KEYS = st.text(st.characters(codec="ascii", categories=["L", "Nd"]), min_size=1)
SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9)
SCALARS |= st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
# A writer of YAML 1.1 leaves texts such as 0E0 bare, which are numbers in 1.2.
WORDS = st.none() | st.booleans() | st.integers(-(10**9), 10**9)
WORDS |= st.text(st.characters(exclude_characters="\0", exclude_categories=["Nd", "Cs"]))
WRITTEN = st.dictionaries(
    KEYS, st.recursive(WORDS, lambda v: st.lists(v) | st.dictionaries(KEYS, v), max_leaves=10)
)
DOCUMENTS = st.dictionaries(
    KEYS, st.recursive(SCALARS, lambda v: st.lists(v) | st.dictionaries(KEYS, v), max_leaves=10)
)


@pytest.mark.slow
@given(DOCUMENTS)
def test_json_is_yaml_and_means_the_same(document):
    if document:
        assert read_yaml(json.dumps(document), what="x") == document


@pytest.mark.slow
@given(WRITTEN)
def test_what_a_yaml_writer_writes_is_read_back(document):
    if document:
        assert read_yaml(pyyaml.safe_dump(document), what="x") == document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-7", -7),
        ("0x1F", 31),
        ("0o17", 15),
        ("010", 10),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2026-01-02", "2026-01-02"),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".inf", ".inf"),
        ("=", "="),
        ('"true"', "true"),
        ("12GiB", "12GiB"),
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(text, value):
    found = read_yaml(f"a: {text}", what="x")["a"]

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2", "duplicate key at `a`"),
        ("a: {b: [{c: 1, c: 2}]}", "duplicate key at `a.b[0].c`"),
        ('a: 1\n"a": 2', "duplicate key at `a`"),
        ("a: &x [1]\nb: *x", "line 2: aliases"),
        ("a: &x {b: 1}\nc:\n  <<: *x", "aliases"),
        ("<<: {a: 1}", "merge keys"),
        ("a: !!python/object:os.system x", "tags are not accepted"),
        ("a: !mine x", "tags are not accepted"),
        ("? [a]\n: 1", "keys are text"),
        ("- a", "expected a map"),
        ("just text", "expected a map"),
        ("", "is empty"),
        ("a: 1\n---\nb: 2", "not valid YAML"),
        ("a: [1", "not valid YAML at line"),
        ("a: 1e999", "too large"),
        ('a: "\\ud800"', "surrogate"),
        ('a: {b: "/srv\\0x"}', "`a.b`: NUL"),
        ('a: ["\\x00"]', "`a[0]`: NUL"),
        ('a: {"\\0": 1}', "`a`: NUL"),
        ("a: " + "[" * 70 + "]" * 70, "64 levels"),
        ("a: " + "[" * 1000 + "]" * 1000, "64 levels"),
    ],
)
def test_what_is_not_strict_is_refused(text, words):
    with pytest.raises(InvalidDocument) as refused:
        read_yaml(text, what="x")

    assert words in str(refused.value)


def test_values_are_not_in_the_message():
    with pytest.raises(InvalidDocument) as refused:
        read_yaml("a: hunter2\na: hunter2\n", what="x")

    assert "hunter2" not in str(refused.value)


def test_files_are_read_within_bounds(tmp_path):
    path = tmp_path / "a.yaml"
    with pytest.raises(InvalidDocument, match="No such file"):
        read_text(path, what="x")
    path.write_bytes(b"a: \xff")
    with pytest.raises(InvalidDocument, match="UTF-8"):
        read_text(path, what="x")
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(InvalidDocument, match="1048576 bytes"):
        read_text(path, what="x")


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("[a, 1]", ["a", 1]), ("true", True), ("a b", "a b"), ("", None), ("0%", "0%")],
)
def test_values_from_a_command_line(text, value):
    assert read_scalar(text) == value


@pytest.mark.parametrize("text", ["{a: 1}", "a: 1", "[", "*x"])
def test_a_command_line_gives_no_maps(text):
    with pytest.raises(ValueError, match="expected a"):
        read_scalar(text)

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from capyctl.engines.prometheus import SAMPLES_MAX, Sample, highest, read_metrics, total

LABEL_NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
LABEL_VALUES = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
NUMBERS = st.floats(allow_nan=False)


def escaped(value):
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@given(
    st.lists(st.tuples(st.dictionaries(LABEL_NAMES, LABEL_VALUES, max_size=3), NUMBERS), max_size=5)
)
def test_what_is_written_is_read(samples):
    lines = ["# HELP m what", "# TYPE m gauge", 'other{a="}"} not a number']
    for labels, value in samples:
        inside = ",".join(f'{name}="{escaped(held)}"' for name, held in labels.items())
        lines.append((f"m{{{inside}}}" if inside else "m") + f" {value!r}")
    found = read_metrics("\n".join(lines), {"m"})
    wanted = [Sample(labels=labels, value=value) for labels, value in samples]
    assert found.get("m", []) == wanted


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text):
    try:
        found = read_metrics("m" + text, {"m"})
    except ValueError:
        return
    assert all(isinstance(one.value, float) for one in found.get("m", []))


def test_a_time_after_the_value_is_taken_and_left_alone():
    assert read_metrics('m{a="1"} 2 1700000000000', {"m"})["m"][0].value == 2


@pytest.mark.parametrize("line", ["m", "m x", "m 1 2 3", 'm{a="1 2', "m{a=1} 2", 'm{"a"} 1'])
def test_malformed_lines_of_a_wanted_metric_are_refused(line):
    with pytest.raises(ValueError, match=r"^m: "):
        read_metrics(line, {"m"})


def test_the_number_of_samples_is_bounded():
    assert len(read_metrics("m 1\n" * SAMPLES_MAX, {"m"})["m"]) == SAMPLES_MAX
    with pytest.raises(ValueError, match="more than"):
        read_metrics("m 1\n" * (SAMPLES_MAX + 1), {"m"})


def test_sums_and_maxima_over_label_sets():
    found = read_metrics('m{e="0"} 1\nm{e="1"} 2\nn NaN', {"m", "n"})
    assert (total(found, "m"), highest(found, "m")) == (3, 2)
    assert total(found, "n") is None
    assert highest(found, "missing") is None
    assert math.isnan(found["n"][0].value)

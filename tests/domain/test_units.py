"""Sizes and durations as people write them."""

import pytest

from capyctl.domain.units import GIB, parse_bytes, parse_duration_s


def test_what_is_written_is_read():
    assert parse_bytes("12GiB") == parse_bytes(" 12 GiB ") == 12 * GIB
    assert parse_bytes("0.5GiB") == GIB // 2
    assert parse_bytes("1.9B") == 1
    assert (parse_duration_s("250ms"), parse_duration_s("2h")) == (0.25, 7200.0)


@pytest.mark.parametrize(
    "text", ["", "12", "12GB", "-1GiB", "1e3GiB", "9" * 400 + "B", "9" * 308 + "TiB"]
)
def test_a_size_that_is_none(text):
    with pytest.raises(ValueError, match="number"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "12", "1d", "9" * 400 + "s"])
def test_a_duration_that_is_none(text):
    with pytest.raises(ValueError, match="number"):
        parse_duration_s(text)

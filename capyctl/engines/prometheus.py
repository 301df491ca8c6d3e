"""Reads the few gauges that capyctl wants out of an engine's Prometheus text."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import attrs

SAMPLES_MAX = 4096
LINE_MAX_CHARS = 16 * 1024


@attrs.frozen(kw_only=True)
class Sample:
    labels: Mapping[str, str]
    value: float


def read_metrics(text: str, wanted: Collection[str]) -> dict[str, list[Sample]]:
    """Samples of the ``wanted`` metric names, in order; names that do not occur are left out.

    Lines of other metrics are not looked at. At most ``SAMPLES_MAX`` samples are taken.

    Raises:
        ValueError: a line of a wanted metric is malformed or there are too many.
    """
    found: dict[str, list[Sample]] = {}
    count = 0
    for line in text.split("\n"):
        name = _name_of(line)
        if name not in wanted:
            continue
        count += 1
        if count > SAMPLES_MAX or len(line) > LINE_MAX_CHARS:
            raise ValueError(f"{name}: more than {SAMPLES_MAX} samples or a line too long")
        found.setdefault(name, []).append(_read_sample(line.strip()[len(name) :], name))
    return found


def total(samples: Mapping[str, list[Sample]], name: str) -> float | None:
    """Sum over all label sets; None when the metric is missing or one is not a number."""
    values = [sample.value for sample in samples.get(name, ())]
    if not values or not all(math.isfinite(value) for value in values):
        return None
    return sum(values)


def highest(samples: Mapping[str, list[Sample]], name: str) -> float | None:
    """Largest over all label sets; None when the metric is missing or one is not a number."""
    values = [sample.value for sample in samples.get(name, ())]
    if not values or not all(math.isfinite(value) for value in values):
        return None
    return max(values)


def _name_of(line: str) -> str:
    stripped = line.lstrip()
    for at, character in enumerate(stripped):
        if character in "{ \t":
            return stripped[:at]
    return stripped


def _read_sample(rest: str, name: str) -> Sample:
    labels: dict[str, str] = {}
    rest = rest.lstrip()
    if rest.startswith("{"):
        labels, rest = _read_labels(rest[1:], name)
    words = rest.split()
    if len(words) not in {1, 2}:
        raise ValueError(f"{name}: expected a value and perhaps a time")
    try:
        return Sample(labels=labels, value=float(words[0]))
    except ValueError:
        raise ValueError(f"{name}: the value is not a number") from None


def _read_labels(text: str, name: str) -> tuple[dict[str, str], str]:
    """The labels up to the closing brace, and what follows it."""
    labels: dict[str, str] = {}
    while True:
        text = text.lstrip(" \t,")
        if text.startswith("}"):
            return labels, text[1:]
        label, equals, text = text.partition("=")
        text = text.lstrip()
        if not equals or not text.startswith('"'):
            raise ValueError(f"{name}: malformed labels")
        labels[label.strip()], text = _read_quoted(text[1:], name)


_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}


def _read_quoted(text: str, name: str) -> tuple[str, str]:
    """A label value up to its closing quote, and what follows it."""
    value: list[str] = []
    at = 0
    while at < len(text):
        character = text[at]
        if character == '"':
            return "".join(value), text[at + 1 :]
        if character == "\\" and at + 1 < len(text):
            at += 1
            value.append(_ESCAPED.get(text[at], "\\" + text[at]))
        else:
            value.append(character)
        at += 1
    raise ValueError(f"{name}: a label is not closed")

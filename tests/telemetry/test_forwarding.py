"""Lines of Python's own log are lines of the role's."""

from __future__ import annotations

import io
import json
import logging

import pytest

from capyctl.telemetry.forwarding import forwarded
from capyctl.telemetry.log import Log

THEIRS = logging.getLogger("tests.theirs")


@pytest.fixture
def stream():
    stream = io.StringIO()
    with forwarded(Log(stream, role="standalone", clock_wall_ms=lambda: 0)):
        yield stream


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("level", "shown"),
    [(logging.WARNING, "warning"), (logging.ERROR, "error"), (logging.CRITICAL, "error")],
)
def test_a_line_is_an_event(stream, level, shown):
    THEIRS.log(level, "%d are open", 3)

    (line,) = lines(stream)
    assert (line["event"], line["level"]) == ("logged", shown)
    assert line["fields"] == {"logger": "tests.theirs", "message": "3 are open"}


def test_what_is_less_than_a_warning_is_left_out(stream):
    THEIRS.info("hello")

    assert lines(stream) == []


def test_a_failure_is_one_line_that_ends_where_it_failed(stream):
    try:
        deep(60)
    except OSError:
        THEIRS.exception("it broke")

    (line,) = lines(stream)
    fields = line["fields"]
    assert fields["message"] == "it broke"
    assert fields["problem"] == "OSError('out of luck')"
    assert fields["traceback"].endswith("OSError: out of luck\n")


def deep(depth):
    if depth == 0:
        raise OSError("out of luck")
    deep(depth - 1)


def test_arguments_that_do_not_fit_lose_no_line(stream):
    record = THEIRS.makeRecord("theirs", logging.WARNING, __file__, 1, "%d of %d", (1,), None)

    ours = [h for h in logging.getLogger().handlers if type(h).__module__.startswith("capyctl")]
    ours[0].handle(record)

    assert [line["fields"]["message"] for line in lines(stream)] == ["%d of %d"]


def test_it_ends_with_its_block(stream):
    handlers = list(logging.getLogger().handlers)
    with forwarded(Log(io.StringIO(), role="host", clock_wall_ms=lambda: 0)):
        pass

    assert logging.getLogger().handlers == handlers

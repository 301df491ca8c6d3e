"""One line an event, bounded, and no secret in it."""

from __future__ import annotations

import enum
import io
import json
import threading

import pytest

from capyctl.telemetry.log import FIELDS_MAX, LINE_CHARACTERS_MAX, WITHHELD, Log

AT_MS = 1_760_000_000_123


class Colour(enum.Enum):
    RED = "red"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(**fields) -> dict:
    stream = io.StringIO()
    Log(stream, role="standalone", clock_wall_ms=lambda: AT_MS).event("tested", **fields)
    line = stream.getvalue()
    assert line.endswith("\n")
    assert line.count("\n") == 1
    return json.loads(line)


def shown_as_text(**fields) -> str:
    stream = Terminal()
    Log(stream, role="standalone", clock_wall_ms=lambda: AT_MS).warning("tested", **fields)
    return stream.getvalue()


def test_a_line_is_one_json_object():
    assert logged(bytes_count=3, ratio=0.5, path="/x", ok=True, none=None, colour=Colour.RED) == {
        "at": "2025-10-09T08:53:20.123Z",
        "level": "info",
        "role": "standalone",
        "event": "tested",
        "fields": {
            "bytes_count": 3,
            "ratio": 0.5,
            "path": "/x",
            "ok": True,
            "none": None,
            "colour": "red",
        },
    }


def test_a_terminal_gets_text():
    text = shown_as_text(port=80, name="a b", empty="", odd="x\n\x1b[2J")

    assert text == (
        '2025-10-09T08:53:20.123Z WARNING tested port=80 name="a b" empty="" odd="x\\n\\u001b[2J"\n'
    )


@pytest.mark.parametrize(("as_json", "start"), [(True, "{"), (False, "2")])
def test_the_form_can_be_chosen(as_json, start):
    stream = Terminal()
    Log(stream, role="r", clock_wall_ms=lambda: AT_MS, as_json=as_json).error("tested")

    assert stream.getvalue().startswith(start)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("token", "abc"),
        ("admin_token", "abc"),
        ("api_key", "abc"),
        ("key", "abc"),
        ("Authorization", "abc"),
        ("detail", "sent Authorization: Basic abc"),
        ("detail", "Bearer abc"),
        ("argv", ["--api-key=abc"]),
        ("detail", "password=abc"),
        ("detail", "-----BEGIN PRIVATE KEY-----"),
    ],
)
def test_secrets_are_withheld(name, value):
    assert logged(**{name: value})["fields"] == {name: WITHHELD}
    assert "abc" not in shown_as_text(**{name: value})


@pytest.mark.parametrize("name", ["tokens_count", "keys_count", "monkey", "key_count"])
def test_figures_and_other_words_are_shown(name):
    assert logged(**{name: 7})["fields"] == {name: 7}


def test_lines_are_bounded():
    long = logged(text="x" * 5000)["fields"]["text"]
    many = logged(**{f"f{n}": "é" * 2000 for n in range(100)})

    assert len(long) < 1100
    assert long.endswith("(5000 characters)")
    assert len(many["fields"]) == FIELDS_MAX
    assert len(json.dumps(many)) <= LINE_CHARACTERS_MAX


def test_what_json_cannot_hold_is_shown_as_text():
    assert logged(x=float("nan"), y=Exception("no"))["fields"] == {"x": "nan", "y": "no"}


def test_a_closed_stream_loses_the_line_and_not_the_caller():
    stream = io.StringIO()
    log = Log(stream, role="r", clock_wall_ms=lambda: AT_MS)
    stream.close()

    log.event("tested")


def test_lines_of_many_threads_are_whole():
    stream = io.StringIO()
    log = Log(stream, role="r", clock_wall_ms=lambda: AT_MS)
    threads = [
        threading.Thread(target=lambda: [log.event("tested", text="x" * 500) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    lines = stream.getvalue().splitlines()
    assert len(lines) == 200
    assert all(json.loads(line)["event"] == "tested" for line in lines)

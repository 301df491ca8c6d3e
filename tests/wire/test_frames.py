"""Frames hold one event each, on one line, whatever is in the event."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from capyctl.domain.canonical import canonical_json
from capyctl.domain.events import Event
from capyctl.wire.frames import event_frames

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.tuples(TEXT, st.none() | TEXT), max_size=4))
def test_frames_are_read_back(items):
    events = [
        Event(
            seq=seq,
            kind="ready_committed",
            deployment=deployment,
            operation=None,
            payload_json=canonical_json({"detail": detail}),
            recorded_at_ms=9,
        )
        for seq, (detail, deployment) in enumerate(items, start=1)
    ]

    frames = event_frames("I", events).decode().split("\n\n")

    assert frames.pop() == ""
    for frame, event in zip(frames, events, strict=True):
        id_line, kind_line, data_line = frame.split("\n")
        assert id_line == f"id: I:{event.seq}"
        assert kind_line == "event: ready_committed"
        assert "\r" not in data_line
        data = json.loads(data_line.removeprefix("data: "))
        assert [*data] == sorted(data)
        assert data == {
            "api_version": "1",
            "deployment_id": event.deployment,
            "operation_id": None,
            "payload": json.loads(event.payload_json),
            "recorded_at_ms": "9",
        }

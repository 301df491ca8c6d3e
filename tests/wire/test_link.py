"""Frames: what is taken, what is refused without being shown, and what is left out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from capyctl.wire import link as w
from capyctl.wire.link_page import link_page
from tests.tidy.tree import ROOT

ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
FROM_HOST = (
    w.Hello(protocol=1, version="0.1.0", capabilities=["x"], epoch=ID, publication={"a": [1]}),
    w.Synced(running={"L": True}, calls=[ID]),
    w.Progress(id=ID, bytes_done=1, bytes_total=2),
    w.Result(id=ID, value={"canary": "ü", "peak": {"gpu0": 2**40}}, running=True),
    w.Error(id=ID, type="launch_refused", code="c", detail="d", final=True, again=True),
    w.Heartbeat(
        seen=3,
        memory=w.MemoryFigures(age_s=0.5, available_bytes={"gpu0": 7}),
        engines={"L": w.EngineFigures(age_s=0.0, running=1, waiting=0, kv_usage_ratio=0.5)},
    ),
    w.Published(publication={}),
    w.Renew(request="-----BEGIN", in_use="0" * 64),
)
FROM_SERVER = (
    w.Welcome(
        protocol=1,
        version="0.1.0",
        compatibility="supported",
        heartbeat_s=1.0,
        silent_s=5.0,
    ),
    w.Refused(code="host_revoked", message="it was"),
    w.Sync(launches=[{"launch": "L"}], calls=[ID], more=True),
    w.Call(id=ID, method="park", params={"record": {}}),
    w.Cancel(id=ID),
    w.Ack(id=ID),
    w.Watch(number=4, launches=["L"]),
    w.Renewed(certificate="-----BEGIN"),
)


def read(frame: w.Frame):
    reader = w.read_host_frame if isinstance(frame, w.HOST_FRAMES) else w.read_server_frame
    return reader(w.write_frame(frame))


@pytest.mark.parametrize("frame", FROM_HOST + FROM_SERVER, ids=lambda frame: frame.kind)
def test_frames_are_read_as_they_were_written(frame):
    assert read(frame) == frame


def test_each_kind_is_tried():
    assert tuple(type(frame) for frame in FROM_HOST) == w.HOST_FRAMES
    assert tuple(type(frame) for frame in FROM_SERVER) == w.SERVER_FRAMES


@pytest.mark.parametrize("frame", FROM_HOST, ids=lambda frame: frame.kind)
def test_a_server_takes_no_servers_frames_and_a_host_no_hosts(frame):
    with pytest.raises(w.BadFrame):
        w.read_server_frame(w.write_frame(frame))


@pytest.mark.parametrize("frame", FROM_HOST + FROM_SERVER, ids=lambda frame: frame.kind)
def test_fields_of_a_newer_release_are_left_out(frame):
    known = json.loads(w.write_frame(frame))
    reader = w.read_host_frame if frame in FROM_HOST else w.read_server_frame

    assert reader(json.dumps({**known, "newer": {"deep": [1]}}).encode()) == frame


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b'{"kind":"nothing"}',
        b'{"kind":"ack"}',
        b'{"kind":"ack","id":5}',
        b'{"kind":"ack","id":"short"}',
        b'{"kind":"ack","id":"01ARZ3NDEKTSV4RRFFQ69G5FAV"} x',
        b'{"kind":"watch","number":"4","launches":[]}',
        b'{"kind":"watch","number":-1,"launches":[]}',
        b'{"kind":"watch","number":1,"launches":{"a":1}}',
        b'{"kind":"welcome","protocol":1,"version":"1",'
        b'"compatibility":"supported","heartbeat_s":1e999,"silent_s":5.0}',
        b'{"kind":"refused","code":"c","message":NaN}',
        b"[" * 100_000,
        b" " * (w.FRAME_BYTES_MAX + 1),
    ],
    ids=lambda data: data[:40].decode(errors="replace"),
)
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(w.BadFrame):
        w.read_server_frame(data)


def test_a_refusal_does_not_show_what_came():
    with pytest.raises(w.BadFrame) as refused:
        w.read_server_frame(b'{"kind":"ack","id":"very private"}')

    assert "private" not in str(refused.value)
    assert "ack.id" in str(refused.value)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_do_more_than_being_refused(data):
    with pytest.raises(w.BadFrame):
        w.read_host_frame(data)


def test_figures_of_a_host_are_finite():
    with pytest.raises(ValidationError):
        w.EngineFigures(age_s=float("nan"), running=1, waiting=0)
    with pytest.raises(ValidationError):
        w.EngineFigures(age_s=1.0, running=1, waiting=0, kv_usage_ratio=float("inf"))


def test_a_frame_of_a_mebibyte_is_the_largest():
    room = w.FRAME_BYTES_MAX - len(w.write_frame(w.Result(id=ID, value="")))
    largest = w.Result(id=ID, value="x" * room)

    assert read(largest) == largest
    with pytest.raises(w.FrameTooLarge, match=str(w.FRAME_BYTES_MAX + 1)):
        w.write_frame(w.Result(id=ID, value="x" * (room + 1)))


def test_the_page_is_written_from_the_schemas():
    page = (ROOT / "docs/reference/link.md").read_text()

    assert page == link_page(), (
        "write it anew: python -m capyctl.wire.link_page > docs/reference/link.md"
    )

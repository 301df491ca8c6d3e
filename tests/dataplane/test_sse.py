"""Reading along in streams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.dataplane.framing import as_chunk
from capyctl.dataplane.sse import EventSplitter, FirstOutput, event_has_output, is_progress


@pytest.mark.parametrize(
    ("payload", "output"),
    [
        (b'{"choices":[{"delta":{"role":"assistant","content":null}}]}', False),
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'{"choices":[]}', False),
        (b'{"choices":[{"delta":{"content":"a"}}]}', True),
        (b'{"choices":[{"delta":{"reasoning":"a"}}]}', True),
        (b'{"choices":[{"delta":{"reasoning_content":"a"}}]}', True),
        (b'{"choices":[{"delta":{"tool_calls":[{}]}}]}', True),
        (b'{"choices":[{"delta":{"new_thing":1}}]}', True),
        (b'{"choices":[{"delta":{},"finish_reason":"stop"}]}', True),
        (b'{"choices":[{"text":"a"}]}', True),
        (b'{"choices":[{"text":""}]}', False),
        (b'{"type":"message_start"}', False),
        (b'{"type":"content_block_delta"}', True),
        (b'{"type":"response.created"}', False),
        (b'{"type":"response.output_text.delta"}', True),
        (b'{"error":{}}', True),
        (b"[DONE]", True),
        (b'{"cho', False),
    ],
)
def test_what_is_output(payload, output):
    assert event_has_output(payload) is output


@pytest.mark.parametrize(
    ("data", "progress"),
    [
        (b": ping\n\n", False),
        (b":\n\n", False),
        (b"\n", False),
        (as_chunk(b": ping\n\n"), False),
        (as_chunk(b":\r\n\r\n"), False),
        (as_chunk(b"data: x\n\n"), True),
        (b"event: x\n", True),
        (b": ping\n\ndata: x\n\n", True),
        (b"da", True),
    ],
)
def test_comments_are_no_progress(data, progress):
    assert is_progress(data) is progress


@given(st.integers(1, 30))
def test_first_output_is_found_however_it_is_cut(size):
    quiet = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n: x\n\n'
    output = b'data: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\n'
    look = FirstOutput()
    for at in range(0, len(quiet), size):
        assert not look.feed(quiet[at : at + size])
    found = [look.feed(output[at : at + size]) for at in range(0, len(output), size)]
    assert True in found


def test_looking_ends_at_a_bound():
    look = FirstOutput()
    assert not look.feed(b"x" * 60_000)
    assert look.feed(b"x" * 6_000)


@given(
    st.lists(st.sampled_from([b"data: a\n\n", b"event: b\ndata: c\r\n\r\n", b": d\n\n"])),
    st.integers(1, 9),
)
def test_events_are_cut_at_their_ends(events, size):
    splitter = EventSplitter()
    data = b"".join(events) + b"data: rest"
    got = [e for at in range(0, len(data), size) for e in splitter.feed(data[at : at + size])]
    assert got == events
    assert splitter.rest() == b"data: rest"


def test_a_huge_event_comes_in_pieces():
    splitter = EventSplitter()
    data = b"data: " + b"x" * 3_000_000 + b"\n\n"
    got = [e for at in range(0, len(data), 65536) for e in splitter.feed(data[at : at + 65536])]
    assert len(got) > 1
    assert b"".join(got) + splitter.rest() == data

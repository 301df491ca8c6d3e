"""Requests out of bytes cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.dataplane.framing import LAST_CHUNK, as_chunk
from capyctl.dataplane.head_cache import HeadCache
from capyctl.dataplane.heads import BadHead
from capyctl.dataplane.reading import RequestReader


def reader(**changes) -> RequestReader:
    bounds = {"head_bytes_max": 1000, "body_bytes_max": 100, **changes}
    return RequestReader(HeadCache(headers_max=10), **bounds)


def sized(body: bytes) -> bytes:
    return b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        len(body),
        body,
    )


def chunked(body: bytes) -> bytes:
    half = len(body) // 2
    parts = [as_chunk(part) for part in (body[:half], body[half:]) if part]
    return (
        b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"".join(parts)
        + LAST_CHUNK
    )


@given(
    st.lists(st.tuples(st.binary(max_size=60), st.booleans()), min_size=1, max_size=5),
    st.integers(1, 80),
)
def test_pipelined_requests_come_out_one_by_one(requests, size):
    data = b"".join(chunked(body) if as_chunks else sized(body) for body, as_chunks in requests)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    read = reader()
    got = []
    while len(got) < len(requests):
        while not read.complete:
            space = read.space()
            if space is not None and pieces:
                count = min(len(space), len(pieces[0]))
                space[:count] = pieces[0][:count]
                pieces[0] = pieces[0][count:]
                read.filled(count)
                if not pieces[0]:
                    pieces.pop(0)
            else:
                read.feed(pieces.pop(0))
        got.append(bytes(read.body))
        read.next()
    assert got == [body for body, _ in requests]
    assert not read.begun


def test_a_body_over_the_bound_is_not_taken():
    read = reader()
    read.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n")
    assert read.stopped
    read = reader()
    read.feed(
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + as_chunk(b"x" * 101)
    )
    assert read.stopped
    assert not read.complete


def test_a_head_over_the_bound_is_refused_whole_or_in_pieces():
    head = b"GET /" + b"x" * 1000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"
    for size in (len(head), 1):
        read = reader()
        with pytest.raises(BadHead) as refused:
            feed_in_pieces(read, head, size)
        assert refused.value.status == 431


def feed_in_pieces(read: RequestReader, data: bytes, size: int) -> None:
    for at in range(0, len(data), size):
        read.feed(data[at : at + size])


def test_what_was_kept_is_read_next():
    read = reader()
    read.feed(sized(b"a"))
    read.keep(sized(b"b") + b"POST")
    assert read.body == b"a"
    read.next()
    assert (read.complete, read.body) == (True, b"b")
    read.next()
    assert not read.complete
    assert read.begun

"""Chunked bodies, cut anywhere."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.dataplane.framing import (
    LAST_CHUNK,
    BrokenFraming,
    ChunkFollower,
    ChunkReader,
    as_chunk,
)

PARTS = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
CUTS = st.lists(st.integers(0, 400), max_size=12)
TRAILERS = st.sampled_from([b"0\r\n\r\n", b"0\r\nA: b\r\n\r\n", b"000;x=y\r\n\r\n"])


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(at for at in cuts if at < len(data))})
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(PARTS, CUTS, TRAILERS, st.binary(max_size=10))
def test_the_payload_comes_out_whole_and_what_follows_is_kept(parts, cuts, trailer, extra):
    reader = ChunkReader()
    got = b""
    pieces = cut(b"".join(map(as_chunk, parts)) + trailer + extra, cuts)
    while pieces and not reader.ended:
        got += reader.feed(pieces.pop(0))
    assert reader.ended
    assert got == b"".join(parts)
    assert reader.extra + b"".join(pieces) == extra


@given(PARTS, CUTS, TRAILERS, st.binary(max_size=10))
def test_following_always_stops_at_the_end_of_a_chunk(parts, cuts, trailer, extra):
    """After every step a chunk of our own could follow, and the payload is the same."""
    follower = ChunkFollower()
    passed = b""
    pieces = cut(b"".join(map(as_chunk, parts)) + trailer + extra, cuts)
    while pieces and not follower.ended:
        passed += follower.feed(pieces.pop(0))
        if not follower.ended:
            check = ChunkReader()
            check.feed(passed + as_chunk(b"ours") + LAST_CHUNK)
            assert check.ended
    check = ChunkReader()
    assert check.feed(passed) == b"".join(parts)
    assert check.ended
    assert check.extra == b""
    assert follower.extra + b"".join(pieces) == extra


@given(PARTS)
def test_whole_chunks_pass_untouched(parts):
    follower = ChunkFollower()
    raw = [as_chunk(part) for part in parts] + [LAST_CHUNK]
    assert [follower.feed(piece) for piece in raw] == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"zz\r\nabc\r\n",
        b"\r\nabc",
        b"-1\r\n\r\n",
        b"0x3\r\nabc\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabcX",
        b"1" * 16 + b"\r\n",
        b"3;" + b"x" * 2000,
        b"0\r\n" + b"A: b\r\n" * 4000,
    ],
)
@pytest.mark.parametrize("kind", [ChunkReader, ChunkFollower])
def test_what_is_no_chunk_is_refused(raw, kind):
    whole, bytewise = kind(), kind()
    with pytest.raises(BrokenFraming):
        whole.feed(raw)
    with pytest.raises(BrokenFraming):
        b"".join(bytewise.feed(bytes((byte,))) for byte in raw)

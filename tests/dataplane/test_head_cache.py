"""A head that was seen before is read as if it were new."""

import pytest

from capyctl.dataplane.head_cache import HEADS_MAX, KEPT_HEAD_BYTES_MAX, HeadCache
from capyctl.dataplane.heads import BadHead


def request(length: str, *more: str) -> bytes:
    lines = ["POST /v1/chat/completions?x HTTP/1.1", "Host: a", f"Content-Length: {length}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def test_heads_that_differ_in_their_length_share_the_rest():
    heads = HeadCache(headers_max=10)
    first, first_length = heads.request(request("5", "Authorization: Bearer a"))
    again, length = heads.request(request("70", "Authorization: Bearer a"))
    other, _ = heads.request(request("5", "Authorization: Bearer b"))
    assert again is first
    assert (first_length, length) == (5, 70)
    assert other.headers[b"authorization"] == b"Bearer b"


@pytest.mark.parametrize(
    "bad",
    [
        request("5", "Content-Length: 5"),
        request("5", "Transfer-Encoding: chunked"),
        request("5x"),
        request("-5"),
        request("+5"),
        request("5_0"),
        request("1" * 16),
        request("5", "A : b"),
        request("5", *["A: b"] * 20),
    ],
)
def test_a_malformed_head_is_refused_each_time(bad):
    heads = HeadCache(headers_max=10)
    heads.request(request("5"))
    for _ in range(2):
        with pytest.raises(BadHead):
            heads.request(bad)


BLANKS = ["", " ", "\t", " \t "]


def framed(start: str, value: str) -> bytes:
    return f"{start}\r\nHost: a\r\nContent-Length:{value}\r\n\r\n".encode()


@pytest.mark.parametrize("before", BLANKS)
@pytest.mark.parametrize("after", BLANKS)
def test_a_length_that_is_empty_is_refused_after_heads_that_have_one(before, after):
    """Read as 0, its body would be taken for the next request."""
    heads = HeadCache(headers_max=10)
    for length in ("5", "70"):
        heads.request(framed("POST / HTTP/1.1", f"{before}{length}{after}"))
        heads.answer(framed("HTTP/1.1 200 OK", f"{before}{length}{after}"))
    for blank in {*BLANKS, before + after}:
        for _ in range(2):
            with pytest.raises(BadHead):
                heads.request(framed("POST / HTTP/1.1", blank))
            with pytest.raises(ValueError):
                heads.answer(framed("HTTP/1.1 200 OK", blank))


@pytest.mark.parametrize("before", BLANKS)
@pytest.mark.parametrize("after", BLANKS)
def test_a_length_may_have_blanks_around_it(before, after):
    heads = HeadCache(headers_max=10)
    for length in (5, 70, 5):
        value = f"{before}{length}{after}"
        assert heads.request(framed("POST / HTTP/1.1", value))[1] == length
        assert heads.answer(framed("HTTP/1.1 200 OK", value))[1] == length


def test_lengths_that_are_not_told():
    heads = HeadCache(headers_max=10)
    head, length = heads.request(b"GET / HTTP/1.1\r\nHost: a\r\nA: content-length: 7\r\n\r\n")
    assert (length, head.is_chunked) == (0, False)
    answer, length = heads.answer(b"HTTP/1.1 200 OK\r\nContent-Type: x\r\n\r\n")
    assert length is None
    assert answer.ends_with_connection


def test_answers_keep_their_own_lengths():
    heads = HeadCache(headers_max=10)
    for length in (1, 22, 333):
        raw = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: %d\r\n\r\n" % length
        answer, told = heads.answer(raw)
        assert (answer.passed_lines, told) == (b"Server: x\r\n", length)


def test_the_cache_is_bounded():
    heads = HeadCache(headers_max=10)
    for number in range(HEADS_MAX + 10):
        heads.request(request("5", f"X: {number}"))
    heads.request(request("5", "Y: " + "y" * KEPT_HEAD_BYTES_MAX))
    assert len(heads._requests._heads) == 10

"""Heads that were parsed before: a connection's requests differ in their length, and little else.

The key is a whole head with 1 for the digits of its Content-Length, so what is found is what
parsing would find: no head without digits there can have such a key.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

from capyctl.dataplane.heads import AnswerHead, RequestHead, read_answer_head, read_request_head

HEADS_MAX = 512
KEPT_HEAD_BYTES_MAX = 2048
"""Larger heads are parsed each time."""

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})(?=[ \t]*\r\n)", re.IGNORECASE)

Head = TypeVar("Head", RequestHead, AnswerHead)


class _Kept(Generic[Head]):
    """The last few hundred heads; all are forgotten when there are more."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}

    def find(self, key: bytes) -> Head | None:
        return self._heads.get(key)

    def keep(self, key: bytes, head: Head) -> None:
        if len(key) > KEPT_HEAD_BYTES_MAX:
            return
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        self._heads[key] = head


class HeadCache:
    """Reads heads of requests and answers, mostly without parsing them again."""

    __slots__ = ("_answers", "_headers_max", "_requests")

    def __init__(self, headers_max: int) -> None:
        self._headers_max = headers_max
        self._requests: _Kept[RequestHead] = _Kept()
        self._answers: _Kept[AnswerHead] = _Kept()

    def request(self, head: bytes) -> tuple[RequestHead, int]:
        """A complete head, and the length of the body that follows it; 0 when it tells none.

        Raises:
            BadHead: it is malformed, or has too many headers.
        """
        key, length = _without_length(head)
        read = self._requests.find(key)
        if read is None:
            read = read_request_head(head, self._headers_max)
            self._requests.keep(key, read)
        return read, length or 0

    def answer(self, head: bytes) -> tuple[AnswerHead, int | None]:
        """A complete head, and the length of its body where it tells one.

        Raises:
            ValueError: it is no HTTP answer.
        """
        key, length = _without_length(head)
        read = self._answers.find(key)
        if read is None:
            read = read_answer_head(head)
            self._answers.keep(key, read)
        return read, length


def _without_length(head: bytes) -> tuple[bytes, int | None]:
    found = _LENGTH.search(head)
    if found is None:
        return head, None
    return head[: found.start(1)] + b"1" + head[found.end(1) :], int(found.group(1))

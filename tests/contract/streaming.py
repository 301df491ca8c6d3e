"""Reads event streams frame by frame."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from tests.contract.speaking import PREFIX, Answer, Connection, Header, Target


@attrs.frozen(kw_only=True)
class Frame:
    id: str
    kind: str
    text: str
    """Of the ``data`` line."""

    @property
    def fields(self) -> Any:
        return json.loads(self.text)

    @property
    def payload(self) -> dict[str, Any]:
        found: dict[str, Any] = self.fields["payload"]
        return found

    @property
    def seq(self) -> int:
        return int(self.id.partition(":")[2])


class Stream:
    """An open stream; what it holds is bytes as they came."""

    def __init__(
        self,
        target: Target,
        query: str = "",
        headers: Iterable[Header] = (),
        *,
        within_s: float = 20.0,
    ) -> None:
        self._connection: Connection = target.connect(within_s)
        self._connection.send(target.request("GET", f"{PREFIX}/events{query}", headers=headers))
        status, sent = self._connection.head()
        self._held = b""
        if status != 200:
            body = self._connection._body(sent)
            self.opening = target.checked(Answer(status=status, headers=sent, body=body))
            return
        self.opening = target.checked(Answer(status=status, headers=sent, body=b""))

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.__exit__()

    def block(self) -> bytes:
        """The bytes up to and with the next blank line; empty at the end of the stream."""
        while b"\n\n" not in self._held:
            chunk = self._connection.chunk()
            if not chunk:
                assert self._held == b""
                return b""
            self._held += chunk
        found, _, self._held = self._held.partition(b"\n\n")
        return found + b"\n\n"

    def frame(self) -> Frame:
        """The next event; comments are passed over."""
        while (block := self.block()).startswith(b":"):
            pass
        id, kind, text = (line.partition(": ") for line in block.decode()[:-2].split("\n"))
        assert (id[0], kind[0], text[0]) == ("id", "event", "data")
        return Frame(id=id[2], kind=kind[2], text=text[2])

    def until(self, check: Callable[[Frame], bool], within_s: float = 20.0) -> list[Frame]:
        """Every frame up to the first one for which ``check`` holds, it among them."""
        found: list[Frame] = []
        until = time.monotonic() + within_s
        while not found or not check(found[-1]):
            assert time.monotonic() < until, [frame.kind for frame in found]
            found.append(self.frame())
        return found


def frames_after(target: Target, cursor: str | None, last: str) -> list[Frame]:
    """Every event after ``cursor``, up to and with the one whose id is ``last``."""
    query = "" if cursor is None else f"?after={cursor}"
    if cursor == last:
        return []
    with Stream(target, query) as stream:
        return stream.until(lambda frame: frame.id == last)

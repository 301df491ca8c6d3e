"""How long events are kept. The oldest go first, in the transaction that adds new ones."""

from __future__ import annotations

import sqlite3

import attrs

from capyctl.domain.events import Event


@attrs.frozen(kw_only=True)
class Retention:
    """Events are kept while all of these hold."""

    count_max: int = 100_000
    payload_bytes_max: int = 64 * 1024 * 1024
    age_max_ms: int = 7 * 24 * 3600 * 1000
    aged_per_commit_max: int = 512
    """Of events that are merely old, at most this many go in one transaction, so that the first
    one after a long pause is not held up by a whole history."""


@attrs.define(kw_only=True)
class History:
    """What the writer knows of the retained events without reading them."""

    last_seq: int
    floor_seq: int
    """Of the oldest retained event; ``last_seq + 1`` when there is none."""
    payload_bytes: int
    oldest_at_ms: int | None

    @property
    def count(self) -> int:
        return self.last_seq + 1 - self.floor_seq

    def append(self, events: list[Event]) -> None:
        if not events:
            return
        assert events[0].seq == self.last_seq + 1
        self.last_seq = events[-1].seq
        self.payload_bytes += sum(len(event.payload_json.encode()) for event in events)
        if self.oldest_at_ms is None:
            self.oldest_at_ms = events[0].recorded_at_ms

    def over(self, keep: Retention, now_ms: int) -> bool:
        """Whether something is to be dropped."""
        return self._full(keep) or self._aged(keep, now_ms)

    def trim(self, connection: sqlite3.Connection, keep: Retention, now_ms: int) -> None:
        """Drop the oldest events, inside the caller's transaction.

        Afterwards number and size are within bounds; age is, or ``over`` stays true and the next
        call goes on.
        """
        if not self.over(keep, now_ms):
            return
        before_seq, aged_count = self.floor_seq, 0
        rows = connection.execute(
            "SELECT payload_bytes, recorded_at_ms FROM events WHERE seq >= ? ORDER BY seq",
            (self.floor_seq,),
        )
        self.oldest_at_ms = None
        for payload_bytes, recorded_at_ms in rows:
            self.oldest_at_ms = recorded_at_ms
            if not self._full(keep):
                if not self._aged(keep, now_ms) or aged_count == keep.aged_per_commit_max:
                    break
                aged_count += 1
            self.floor_seq += 1
            self.payload_bytes -= payload_bytes
            self.oldest_at_ms = None
        rows.close()
        connection.execute(
            "DELETE FROM events WHERE seq >= ? AND seq < ?", (before_seq, self.floor_seq)
        )

    def _full(self, keep: Retention) -> bool:
        return self.count > keep.count_max or self.payload_bytes > keep.payload_bytes_max

    def _aged(self, keep: Retention, now_ms: int) -> bool:
        return self.oldest_at_ms is not None and self.oldest_at_ms < now_ms - keep.age_max_ms


def read_history(connection: sqlite3.Connection, *, last_seq: int, payload_bytes: int) -> History:
    row = connection.execute(
        "SELECT seq, recorded_at_ms FROM events ORDER BY seq LIMIT 1"
    ).fetchone()
    floor_seq, oldest_at_ms = row or (last_seq + 1, None)
    return History(
        last_seq=last_seq,
        floor_seq=floor_seq,
        payload_bytes=payload_bytes,
        oldest_at_ms=oldest_at_ms,
    )

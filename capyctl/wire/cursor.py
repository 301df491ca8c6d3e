"""A place in the event history as clients write it: ``<ULID>:<sequence>``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from capyctl.domain.errors import Refused
from capyctl.domain.events import Cursor
from capyctl.wire.paths import ULID_PATTERN
from capyctl.wire.query import read_query

SEQ_MAX = 2**63 - 1
_CURSOR = re.compile(rf"({ULID_PATTERN}):(0|[1-9][0-9]{{0,18}})")


def read_cursor(text: str) -> Cursor:
    """Raises Refused(``invalid_cursor``) for any other spelling."""
    found = _CURSOR.fullmatch(text)
    if found is None or int(found[2]) > SEQ_MAX:
        raise Refused("invalid_cursor", "A cursor is <ULID>:<sequence>, as in the snapshot")
    return Cursor(incarnation=found[1], seq=int(found[2]))


def asked_cursor(query: bytes, last_event_ids: Sequence[str]) -> Cursor | None:
    """The point that a request for events names, by ``after`` or ``Last-Event-ID`` or both.

    Raises:
        Refused: ``invalid_cursor``, when it is malformed, named twice or in two ways, or when
            the query holds anything else.
    """
    asked = list(read_query(query, ("after",), code="invalid_cursor").values())
    if len(last_event_ids) > 1:
        raise Refused("invalid_cursor", "Last-Event-ID was sent more than once")
    cursors = [read_cursor(text) for text in (*asked, *last_event_ids)]
    if len(set(cursors)) > 1:
        raise Refused("invalid_cursor", "after and Last-Event-ID name different points")
    return cursors[0] if cursors else None

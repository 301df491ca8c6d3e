"""Figures and timing put into an answer, where they are asked for."""

from __future__ import annotations

import msgspec

from capyctl.dataplane.admit import Admitted
from capyctl.dataplane.figures import Figures
from capyctl.dataplane.plane import Plane
from capyctl.dataplane.poller import Poller
from capyctl.dataplane.relay import Relay


def observe(
    relay: Relay,
    plane: Plane,
    admitted: Admitted,
    poller: Poller,
    waited_s: float,
    *,
    asked: bool,
) -> None:
    """Have ``relay`` add what the request or the plane's settings want to see.

    ``asked``: by the request; ``waited_s``: for its lease. Called when the request is forwarded.
    """
    forwarded_s = poller.now_s
    streams = admitted.streams

    def timing() -> bytes:
        """Milliseconds in the queue, and from forwarding to now."""
        engine_ms = round((poller.now_s - forwarded_s) * 1000, 3)
        queue_ms = round(waited_s * 1000, 3)
        return msgspec.json.encode({"queue_ms": queue_ms, "engine_ms": engine_ms})

    wants_figures = asked or plane.request_metrics
    if plane.timing_header:
        relay.timing_lines = lambda: b"x-capyctl-timing: %b\r\n" % timing()
    if not wants_figures and not (plane.timing_header and streams):
        return
    figures = Figures(admitted.route.family, forwarded_s, streamed=streams)

    def last_words() -> bytes:
        words = figures.comment() if wants_figures else b""
        return words + b": x-capyctl-timing %b\n\n" % timing() if plane.timing_header else words

    relay.tell_figures(figures, last_words)

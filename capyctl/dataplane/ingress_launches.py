"""Which engines of this machine requests may reach, and how many requests are inside each. Pure."""

from __future__ import annotations

import attrs

from capyctl.dataplane.failures import Failure
from capyctl.domain.ids import LaunchId
from capyctl.domain.launches import Endpoint

CLOSED_MAX = 1024
"""Launches of which it is remembered that they were open once."""


@attrs.frozen(kw_only=True)
class _Opening:
    endpoint: Endpoint
    generation: int


class OpenLaunches:
    """The `contracts.hosts.Openings` of an ingress."""

    __slots__ = ("_closed", "_inside", "_open")

    def __init__(self) -> None:
        self._open: dict[LaunchId, _Opening] = {}
        self._closed: dict[LaunchId, None] = {}
        self._inside: dict[LaunchId, int] = {}

    def open(self, launch: LaunchId, endpoint: Endpoint, *, generation: int) -> None:
        """Let requests through that name this generation, and no others.

        ``endpoint`` is the engine itself on loopback, with the launch's key.
        """
        self._closed.pop(launch, None)
        self._open[launch] = _Opening(endpoint=endpoint, generation=generation)

    def close(self, launch: LaunchId) -> None:
        """Let no more requests through; those inside go on. No error if it is not open."""
        if self._open.pop(launch, None) is None:
            return
        self._closed[launch] = None
        while len(self._closed) > CLOSED_MAX:
            del self._closed[next(iter(self._closed))]

    def find(self, launch: LaunchId, generation: int) -> Endpoint | Failure:
        """Where a request for this opening of the launch goes, or why nowhere."""
        opening = self._open.get(launch)
        if opening is None:
            if launch in self._closed:
                return untaken("closed", f"launch {launch} takes no requests now")
            return untaken("unknown_launch", f"this machine does not serve launch {launch}")
        if opening.generation != generation:
            return untaken(
                "stale_generation",
                f"the request is for generation {generation} of launch {launch}, "
                f"which serves generation {opening.generation}",
            )
        return opening.endpoint

    def in_flight(self, launch: LaunchId) -> int:
        """Requests that its engine works on for this ingress."""
        return self._inside.get(launch, 0)

    def count_in(self, launch: LaunchId) -> None:
        self._inside[launch] = self._inside.get(launch, 0) + 1

    def count_out(self, launch: LaunchId) -> None:
        left = self._inside[launch] - 1
        if left:
            self._inside[launch] = left
        else:
            del self._inside[launch]


def untaken(word: str, message: str) -> Failure:
    """An answer which says that no engine has got the request."""
    status = 409 if word == "stale_generation" else 503
    return Failure(code=word, message=message, status=status, ingress_word=word)

"""What lies between a listener's connections and whoever answers their requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from capyctl.dataplane.failures import Failure
from capyctl.dataplane.records import Outcome
from capyctl.dataplane.relay import Relay
from capyctl.dataplane.routes import EnginePath, Route
from capyctl.gates.lease import Lease

if TYPE_CHECKING:
    from capyctl.dataplane.answer import Answer
    from capyctl.dataplane.client import Client
    from capyctl.dataplane.heads import RequestHead
    from capyctl.dataplane.serving import Serving

JSON_LINES = b"Content-Type: application/json\r\n"


@attrs.frozen(kw_only=True)
class LocalAnswer:
    """A 200 that no engine is needed for."""

    body: bytes
    lines: bytes = JSON_LINES


Decision = Failure | LocalAnswer | EnginePath
"""By a request's head alone; an `EnginePath` goes on to `Door.begin`."""


class Passing(Protocol):
    """One request on its way to an engine, and its answer's back.

    `start` by a callback if it can, `run` by a task if it must.

    Attributes:
        failure: what was told instead of, or in, an answer.
        route, lease: of the model, where the listener knows models; the lease given back or not.
        outcome: how it ended.
    """

    failure: Failure | None
    lease: Lease | None
    outcome: Outcome
    relay: Relay | None
    waited_s: float

    @property
    def route(self) -> Route | None: ...

    @property
    def is_complete(self) -> bool:
        """The answer was relayed whole."""

    def start(self) -> bool:
        """Begin without waiting. True when the answer is being relayed now; else `run` goes on."""

    async def run(self) -> None:
        """Serve the request from where `start` left it. Cancelling gives everything back."""

    def finish(self) -> None:
        """The relay that `start` began is complete: give everything back."""

    def abandon(self) -> None:
        """It is over. What it still holds is given back; its engine may be at work."""


class Door(Protocol):
    """Lets requests in, or says why not. Called in the middle of a step."""

    is_public: bool
    """Answers carry the ids of their requests, and a client too many is told that it is."""

    def check_head(self, head: RequestHead) -> Decision:
        """Decide from the head alone, so that a refusal needs no body."""

    def begin(
        self,
        serving: Serving,
        client: Client,
        head: RequestHead,
        path: EnginePath,
        answer: Answer,
        arrived_s: float,
    ) -> Failure | Passing:
        """For a request that is here, body included."""

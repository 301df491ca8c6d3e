"""One request of the server to an engine of this machine, and the engine's answer back.

The server waits, bounds times and decides what a client is told; here nothing is added. What the
engine refuses is passed on as it came, and an answer that breaks is broken off.
"""

from __future__ import annotations

import math

from capyctl.dataplane.answer import Answer
from capyctl.dataplane.client import Client
from capyctl.dataplane.dial import Dial
from capyctl.dataplane.engine_link import EngineLink
from capyctl.dataplane.failures import ENGINE_BROKE, Failure
from capyctl.dataplane.heads import RequestHead, engine_request
from capyctl.dataplane.ingress_launches import OpenLaunches, untaken
from capyctl.dataplane.records import Outcome
from capyctl.dataplane.relay import End, Relay
from capyctl.dataplane.serving import Serving
from capyctl.domain.ids import HostId, LaunchId
from capyctl.domain.launches import Endpoint
from capyctl.gates.lease import Lease


class Passage:
    """A `doors.Passing` without model, queue or lease."""

    __slots__ = (
        "_answer",
        "_begun",
        "_client",
        "_cut",
        "_dial",
        "_endpoint",
        "_head",
        "_launch",
        "_launches",
        "_link",
        "_serving",
        "failure",
        "lease",
        "outcome",
        "relay",
        "waited_s",
    )

    route = None

    def __init__(
        self,
        serving: Serving,
        launches: OpenLaunches,
        client: Client,
        head: RequestHead,
        answer: Answer,
        *,
        launch: LaunchId,
        endpoint: Endpoint,
    ) -> None:
        self._serving = serving
        self._launches = launches
        self._client = client
        self._head = head
        self._answer = answer
        self._launch = launch
        self._endpoint = endpoint
        self._dial = Dial(client, serving.pool, serving.plane.limits.connect_timeout_s)
        self._link: EngineLink | None = None
        self._begun = False
        self._cut = False
        self.relay: Relay | None = None
        self.failure: Failure | None = None
        self.lease: Lease | None = None
        self.outcome = Outcome.SERVED
        self.waited_s = 0.0

    @property
    def is_complete(self) -> bool:
        return self.relay is not None and self.relay.end is End.COMPLETE

    def start(self) -> bool:
        self._client.look = self._look
        self._serving.plane.state.begin(self)
        self._launches.count_in(self._launch)
        self._begun = True
        link = self._serving.pool.take(self._launch, self._endpoint)
        return link is not None and self._send(link).end is None

    async def run(self) -> None:
        try:
            if not self._begun:
                self.start()
            await self._forward()
        finally:
            self.abandon()

    def finish(self) -> None:
        relay, link = self.relay, self._link
        assert relay is not None, "finished without a relay"
        assert link is not None, "finished without a connection"
        self._part_with(relay, link)
        self.abandon()

    def abandon(self) -> None:
        if not self._begun:
            return
        self._begun = False
        if self.relay is not None:
            self.relay.stop(End.CUT)
        if self._link is not None:
            self._link.close()
        self._launches.count_out(self._launch)
        self._serving.plane.state.end(self)

    def begin_shutdown(self) -> None:
        """What an engine has goes on."""

    def lose_host(self, host: HostId) -> None:
        """Its engine is here."""

    def cut(self) -> None:
        self._cut = True
        if self.relay is not None:
            self.relay.stop(End.CUT)
        self._client.bell.ring()

    async def _forward(self) -> None:
        """Send it, once more where a kept connection has not taken it, and conclude."""
        fresh = False
        while True:
            if self._link is None:
                link = await self._dial.connect(self._launch, self._endpoint, self._is_unwanted)
                if link is None:
                    self._not_sent()
                    return
                self._send(link)
            relay, link = self.relay, self._link
            assert relay is not None, "a request was sent without a relay"
            assert link is not None, "a request was sent without a connection"
            while relay.end is None:
                await self._client.bell.wait()
            self._part_with(relay, link)
            if relay.end is not End.STALE or fresh:
                self._conclude(relay)
                return
            fresh = True

    def _is_unwanted(self) -> bool:
        return self._client.gone is not None or self._cut

    def _send(self, link: EngineLink) -> Relay:
        serving, client, endpoint = self._serving, self._client, self._endpoint
        self._link = link
        self.relay = relay = Relay(client, self._answer, link, serving.poller, serving.heads)
        body = client.reader.body
        content_type = self._head.headers.get(b"content-type", b"application/json")
        relay.start(engine_request(self._head, endpoint, content_type, len(body)), body)
        if client.gone is not None:
            relay.stop(End.LOST)
        return relay

    def _part_with(self, relay: Relay, link: EngineLink) -> None:
        self._link = None
        if relay.link_is_whole:
            self._serving.pool.give(link)
        else:
            link.close()

    def _not_sent(self) -> None:
        if self._client.gone is not None:
            self.outcome = Outcome.CLIENT_CLOSED
        elif self._cut:
            self._fail(untaken("stopping", "this machine's capyctl is stopping"))
        else:
            self._fail(untaken("unreachable", "the engine does not accept connections"))

    def _conclude(self, relay: Relay) -> None:
        end, head = relay.end, relay.head
        if end is End.COMPLETE:
            return
        if end is End.LOST:
            self.outcome = Outcome.CLIENT_CLOSED
            return
        if end is End.REFUSED:
            assert head is not None, "an engine refused without a head"
            self._answer.whole(head.status, head.passed_lines, relay.collected)
            return
        why = relay.why or ("it was stopped" if end is End.CUT else "it closed the connection")
        self._fail(Failure(code=ENGINE_BROKE, message=why, status=502, ingress_word=ENGINE_BROKE))

    def _fail(self, failure: Failure) -> None:
        self.outcome = Outcome.ENGINE_FAILED
        self.failure = failure
        if self._answer.status:
            self._answer.break_off()
        else:
            self._answer.fail(failure)

    def _look(self, now_s: float) -> float:
        return self._dial.look(now_s) if self._link is None else math.inf

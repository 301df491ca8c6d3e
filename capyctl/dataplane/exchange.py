"""One request for a model, from admission to the end of its lease.

Every wait here ends with the client's leaving, the request's deadline, or a shutdown.
"""

from __future__ import annotations

import math

import trio

from capyctl.dataplane.acquire import Place, waited_too_long
from capyctl.dataplane.admit import Admitted
from capyctl.dataplane.answer import Answer
from capyctl.dataplane.client import Client
from capyctl.dataplane.dial import Dial
from capyctl.dataplane.engine_link import EngineLink
from capyctl.dataplane.failures import (
    ENGINE_REJECTED,
    SHUTTING_DOWN,
    Failure,
    engine_refused,
    failure,
    nobody_took,
    refused,
    untaken_by_ingress,
)
from capyctl.dataplane.heads import RequestHead, engine_request
from capyctl.dataplane.observe import observe
from capyctl.dataplane.records import Outcome
from capyctl.dataplane.relay import End, Relay
from capyctl.dataplane.routes import Route
from capyctl.dataplane.serving import Serving
from capyctl.domain.ids import HostId
from capyctl.gates.admission import NotAdmitted
from capyctl.gates.lease import Lease


class Exchange:
    """One request and what it holds; a `doors.Passing`."""

    __slots__ = (
        "_answer",
        "_begun",
        "_client",
        "_comment_s",
        "_cut",
        "_deadline_s",
        "_dial",
        "_expired",
        "_head",
        "_link",
        "_place",
        "_serving",
        "admitted",
        "arrived_s",
        "failure",
        "lease",
        "outcome",
        "relay",
        "waited_s",
    )

    def __init__(
        self,
        serving: Serving,
        client: Client,
        head: RequestHead,
        admitted: Admitted,
        answer: Answer,
        arrived_s: float,
    ) -> None:
        self._serving = serving
        self._client = client
        self._head = head
        self.admitted = admitted
        self._answer = answer
        self._deadline_s = arrived_s + admitted.route.request_deadline_s
        limits = serving.plane.limits
        interval_s = limits.comment_interval_s if admitted.streams else None
        self._comment_s = math.inf if interval_s is None else arrived_s + interval_s
        self._dial = Dial(client, serving.pool, limits.connect_timeout_s)
        self._expired = False
        self._cut = False
        self.lease: Lease | None = None
        self._link: EngineLink | None = None
        self._place: Place | None = None
        self._begun = False
        self.relay: Relay | None = None
        self.arrived_s = arrived_s
        self.waited_s = 0.0
        self.failure: Failure | None = None
        self.outcome = Outcome.SERVED

    def start(self) -> bool:
        client, serving = self._client, self._serving
        client.look = self._look
        client.arm(self._deadline_s)
        client.arm(self._comment_s)
        serving.plane.state.begin(self)
        self._begun = True
        self.lease = lease = self._enter()
        if lease is None:
            return False
        link = serving.pool.take(lease.gate, lease.endpoint)
        return link is not None and self._start_relay(link, lease).end is None

    async def run(self) -> None:
        try:
            if not self._begun:
                self.start()
            if self._place is not None:
                self.lease = await self._wait(self._place)
            if self.lease is not None:
                self._give_back(await self._forward())
            if self.failure is not None:
                self._answer.fail(self.failure)
        finally:
            self.abandon()

    def finish(self) -> None:
        relay, link = self.relay, self._link
        assert relay is not None, "finished without a relay"
        assert link is not None, "finished without a connection"
        self._give_back(self._conclude(relay, link))
        self.abandon()

    def abandon(self) -> None:
        if not self._begun:
            return
        self._begun = False
        if self.relay is not None:
            self.relay.stop(End.CUT)
        if self._link is not None:
            self._link.close()
        if self.lease is not None and not self.lease.closed:
            self._give_back("the data plane was stopped")
        self._serving.plane.state.end(self)

    def _give_back(self, unproven: str | None) -> None:
        """The lease; ``unproven`` says why its engine may still be at work."""
        lease = self.lease
        assert lease is not None, "a lease is given back that was not taken"
        now_s = self._serving.poller.now_s
        admission = self.route.admission
        admission.leave(lease, now_s, unproven=unproven is not None)
        if unproven is not None:
            self._serving.plane.unproven(lease.instance, lease.generation, unproven)

    def begin_shutdown(self) -> None:
        if self.lease is None:
            self.cut()

    def lose_host(self, host: HostId) -> None:
        link = self._link
        ingress = link.endpoint.ingress if link is not None else None
        if self.relay is not None and ingress is not None and ingress.host == host:
            self.relay.stop(End.BROKE, "the machine that served it is not trusted any more")

    def cut(self) -> None:
        self._cut = True
        if self.relay is not None:
            self.relay.stop(End.CUT)
        self._client.bell.ring()

    @property
    def route(self) -> Route:
        return self.admitted.route

    @property
    def is_complete(self) -> bool:
        return self.relay is not None and self.relay.end is End.COMPLETE

    def _enter(self) -> Lease | None:
        """A lease, or a `_place` in the queue; neither with `failure` or the client gone."""
        admission = self.route.admission
        now_s = self._serving.poller.now_s
        if self._client.gone is not None:
            self.outcome = Outcome.CLIENT_CLOSED
            return None
        try:
            lease = admission.try_enter(now_s)
            if lease is not None:
                return lease
            place = Place(self._client.bell, now_s, len(self.admitted.body))
            nudge_due = admission.enqueue(place)
        except NotAdmitted as refusal:
            self.outcome = Outcome.REFUSED
            self.failure = refused(refusal.refusal)
            nudge_due = refusal.nudge_due
        else:
            self._place = place
        if nudge_due:
            self._serving.plane.nudge(self.route.deployment)
        return None

    async def _wait(self, place: Place) -> Lease | None:
        client, admission = self._client, self.route.admission
        taken = False
        try:
            while not (place.answered or self._expired or self._cut or client.gone is not None):
                await client.bell.wait()
            taken = place.lease is not None and client.gone is None
        finally:
            self.waited_s = trio.current_time() - place.since_s
            if not taken:
                place.give_up(admission, trio.current_time())
        if taken:
            return place.lease
        if client.gone is not None:
            self.outcome = Outcome.CLIENT_CLOSED
        elif place.refusal is not None:
            self.outcome, self.failure = Outcome.REFUSED, refused(place.refusal)
        elif self._cut:
            self.outcome, self.failure = Outcome.CUT, SHUTTING_DOWN
        else:
            within_s = self._deadline_s - self.arrived_s
            self.outcome, self.failure = Outcome.REFUSED, waited_too_long(admission, within_s)
        return None

    async def _forward(self) -> str | None:
        """Try instances until one has the request. Returns why its engine may still be at work."""
        avoid: set[int] = set()
        fresh = False
        while True:
            if self._link is None and not await self._send(avoid, fresh=fresh):
                return None
            relay, link = self.relay, self._link
            assert relay is not None, "a request was sent without a relay"
            assert link is not None, "a request was sent without a connection"
            while relay.end is None:
                await self._client.bell.wait()
            again = relay.end is End.STALE and link.used_count > 0 and not fresh
            why = self._why_untaken(relay)
            if why is None:
                return self._conclude(relay, link)
            self._part_with(relay, link)
            self.relay = None
            if again:
                fresh = True
                continue
            avoid.add(self._held_lease.instance.index)
            if self._given_up() or not self._move(avoid, why):
                return None
            fresh = False

    @property
    def _held_lease(self) -> Lease:
        assert self.lease is not None, "a request is forwarded without a lease"
        return self.lease

    def _why_untaken(self, relay: Relay) -> str | None:
        """Why the request has surely reached no engine, for the client; None when it may have."""
        if relay.end is End.STALE:
            return "it closed the connection"
        head = relay.head
        if head is None or self._held_lease.endpoint.ingress is None:
            return None
        return untaken_by_ingress(head.ingress_word, relay.collected)

    def _part_with(self, relay: Relay, link: EngineLink) -> None:
        """The request's way over this connection is over."""
        self._link = None
        if relay.link_is_whole:
            self._serving.pool.give(link)
        else:
            link.close()

    async def _send(self, avoid: set[int], *, fresh: bool) -> bool:
        """Connect and send; false, mostly with `failure`, when no engine has got the request."""
        while not self._given_up():
            lease = self._held_lease
            link = None if fresh else self._serving.pool.take(lease.gate, lease.endpoint)
            if link is None:
                link = await self._dial.connect(lease.gate, lease.endpoint, self._is_unwanted)
            if link is not None:
                self._start_relay(link, lease)
                return True
            avoid.add(lease.instance.index)
            if self._given_up() or not self._move(avoid, None):
                return False
        return False

    def _move(self, avoid: set[int], why: str | None) -> bool:
        """To an instance that was not tried; false, with `failure`, where there is none.

        ``why`` the last one has not taken the request; None: no connection came about.
        """
        lease = self._held_lease
        moved = None
        if len(avoid) < self._serving.plane.limits.attempts_max:
            moved = self.route.admission.move(lease, avoid)
        if moved is None:
            self.outcome = Outcome.ENGINE_FAILED
            self.failure = nobody_took(why, elsewhere=lease.endpoint.ingress is not None)
            return False
        self.lease = moved
        return True

    def _is_unwanted(self) -> bool:
        return self._client.gone is not None or self._cut or self._expired

    def _given_up(self) -> bool:
        """Whether nobody wants the answer any more; the engine has nothing of the request."""
        if self._client.gone is not None:
            self.outcome = Outcome.CLIENT_CLOSED
        elif self._cut:
            self.outcome, self.failure = Outcome.CUT, SHUTTING_DOWN
        elif self._expired:
            self.outcome, self.failure = Outcome.ENGINE_FAILED, self._late()
        else:
            return False
        return True

    def _start_relay(self, link: EngineLink, lease: Lease) -> Relay:
        serving, admitted, client = self._serving, self.admitted, self._client
        self._link = link
        self.relay = relay = Relay(client, self._answer, link, serving.poller, serving.heads)
        asked = self._head.headers.get(b"x-capyctl-metrics")
        if asked is not None or serving.plane.observes:
            on = asked is not None and asked.lower() == b"on"
            observe(relay, serving.plane, admitted, serving.poller, self.waited_s, asked=on)
        relay.on_first_output = self._arm_idle
        body = admitted.body_for(lease.endpoint.served_name)
        head = engine_request(self._head, lease.endpoint, admitted.content_type, len(body))
        relay.start(head, body)
        if client.gone is not None:
            relay.stop(End.LOST)
        return relay

    def _conclude(self, relay: Relay, link: EngineLink) -> str | None:
        """Outcome, failure, connection. Returns why the engine may still be at work, or None."""
        self._part_with(relay, link)
        end, done = relay.end, relay.engine_is_done
        if end is End.COMPLETE:
            return None
        if end is End.REFUSED:
            return self._conclude_refusal(relay)
        if end is End.LOST:
            self.outcome = Outcome.CLIENT_CLOSED
            return None if done else f"the client left ({self._client.gone})"
        if end is End.CUT:
            self.outcome, self.failure = Outcome.CUT, SHUTTING_DOWN
            return None if done else "broken off by a shutdown"
        self.outcome = Outcome.ENGINE_FAILED
        if end is End.LATE:
            self.failure = self._late()
        elif end is End.PAUSED:
            idle_s = self.route.stream_idle_max_s
            self.failure = failure("engine_error", f"the engine sent nothing for {idle_s:g} s")
        else:
            why = relay.why or "the engine closed the connection"
            self.failure = failure("engine_error", why)
        return self.failure.message

    def _conclude_refusal(self, relay: Relay) -> str | None:
        head = relay.head
        assert head is not None, "an engine refused without a head"
        word = head.ingress_word if self._held_lease.endpoint.ingress is not None else None
        self.failure = engine_refused(head.status, relay.collected, word)
        if self.failure.code == ENGINE_REJECTED:
            self.outcome = Outcome.REFUSED
            return None
        self.outcome = Outcome.ENGINE_FAILED
        return self.failure.message

    def _late(self) -> Failure:
        within_s = self._deadline_s - self.arrived_s
        return failure("engine_error", f"the engine gave no output within {within_s:g} s")

    def _arm_idle(self) -> None:
        self._client.arm(self._serving.poller.now_s + self.route.stream_idle_max_s)

    def _look(self, now_s: float) -> float:
        """At each alarm: comments, deadlines, pauses. Returns when to look again."""
        relay = self.relay
        if relay is not None and relay.first_output_s is not None:
            return self._look_for_pause(relay, now_s)
        connect_s = self._dial.look(now_s)
        if now_s >= self._deadline_s:
            self._expired = True
            if relay is not None:
                relay.stop(End.LATE)
            self._client.bell.ring()
            return math.inf
        if relay is not None and relay.head is not None:
            return self._deadline_s
        if now_s >= self._comment_s:
            self._answer.comment()
            self._comment_s = now_s + (self._serving.plane.limits.comment_interval_s or math.inf)
        return min(self._deadline_s, self._comment_s, connect_s)

    def _look_for_pause(self, relay: Relay, now_s: float) -> float:
        idle_s = self.route.stream_idle_max_s
        if self._client.is_blocked or relay.end is not None:
            return now_s + idle_s
        if now_s - relay.progress_s >= idle_s:
            relay.stop(End.PAUSED)
        return relay.progress_s + idle_s

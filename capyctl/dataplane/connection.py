"""One client connection: request after request, each answered before the next is read."""

from __future__ import annotations

import math

from capyctl.dataplane.admit import LocalAnswer, check_body, check_head, too_large
from capyctl.dataplane.answer import Answer
from capyctl.dataplane.client import Client
from capyctl.dataplane.exchange import Exchange
from capyctl.dataplane.failures import Failure, failure, malformed
from capyctl.dataplane.heads import RequestHead
from capyctl.dataplane.records import Outcome, RequestRecord, usage_in
from capyctl.dataplane.request_ids import echoed
from capyctl.dataplane.routes import EnginePath
from capyctl.dataplane.serving import Serving

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLIENT_CLOSED_STATUS = 499
_JSON = b"Content-Type: application/json\r\n"

Decision = Failure | LocalAnswer | EnginePath


class Connection:
    """Owns a client's socket from acceptance to its close.

    ``over_cap``: there are too many connections; the first request is refused.
    """

    __slots__ = ("_answer", "_client", "_late", "_over_cap", "_serving")

    def __init__(self, serving: Serving, client: Client, *, over_cap: bool = False) -> None:
        self._serving = serving
        self._client = client
        self._over_cap = over_cap
        self._late: str | None = None
        """What the client took too long with."""
        self._answer: Answer | None = None

    async def run(self) -> None:
        """Serve requests until the connection ends. Cancelling closes it."""
        plane, client = self._serving.plane, self._client
        plane.state.connections[self] = None
        try:
            while await self._serve_one():
                pass
        except Exception as error:
            self._report_bug(error)
        finally:
            del plane.state.connections[self]
            answer = self._answer
            client.close(reset=answer is not None and answer.needs_reset)

    def close_if_idle(self) -> None:
        if self._client.idle:
            self._client.lose("closed")

    async def _serve_one(self) -> bool:
        """Read one request and answer it. True when another may follow."""
        client = self._client
        self._answer = None
        decision = await self._receive()
        if decision is None:
            return False
        head = client.reader.head
        arrived_s = client.last_byte_s
        request_id = self._serving.ids.fresh()
        client_id = echoed(head.headers.get(b"x-request-id")) if head is not None else None
        answer = Answer(client, head, _identity(request_id, client_id))
        self._answer = answer
        if not client.reader.complete or self._serving.plane.shutting_down or self._over_cap:
            answer.closes = True
        exchange: Exchange | None = None
        outcome = Outcome.ANSWERED
        if isinstance(decision, EnginePath):
            assert head is not None, "a path was found without a head"
            client.begin_answering()
            table = self._serving.plane.routes()
            admitted = check_body(table, head, decision, client.reader.body)
            if isinstance(admitted, Failure):
                decision = admitted
            else:
                exchange = Exchange(self._serving, client, head, admitted, answer, arrived_s)
                await exchange.run()
                outcome, decision = exchange.outcome, exchange.failure or decision
        if exchange is None:
            outcome = _answer_here(answer, decision)
        self._record(answer, request_id, client_id, decision, outcome, exchange, arrived_s)
        return await self._finish(answer)

    async def _finish(self, answer: Answer) -> bool:
        client = self._client
        await client.flush()
        if client.gone is not None:
            return False
        if not answer.closes:
            return True
        if not answer.needs_reset:
            await client.linger()
        return False

    async def _receive(self) -> Decision | None:
        """The next request, decided on as soon as that can be; None when there is none."""
        client, limits = self._client, self._serving.plane.limits
        reader = client.reader
        client.look = self._look
        client.begin_reading()
        client.arm(client.begun_s + limits.connection_idle_max_s)
        decision: Decision | None = None
        while client.gone is None:
            if client.bad is not None:
                return malformed(client.bad.message, client.bad.status)
            if self._late is not None:
                return malformed(self._late, 408)
            head = reader.head
            if head is not None and decision is None:
                decision = self._decide(head)
                if not isinstance(decision, EnginePath):
                    return decision
                if head.expects_continue and not reader.complete and not reader.body_count:
                    client.push(CONTINUE)
            if reader.stopped:
                return too_large(self._serving.plane)
            if reader.complete:
                return decision
            await client.bell.wait()
        return None

    def _decide(self, head: RequestHead) -> Decision:
        if self._over_cap:
            count = self._serving.plane.limits.connections_max
            return failure("unavailable", f"all {count} connections of this server are taken")
        return check_head(self._serving.plane, head)

    def _look(self, now_s: float) -> float:
        """At each alarm while a request is awaited or arriving."""
        client, limits = self._client, self._serving.plane.limits
        reader = client.reader
        if not reader.begun:
            end_s = client.begun_s + limits.connection_idle_max_s
            if now_s >= end_s:
                client.lose("closed")
            return end_s
        if reader.head is None:
            end_s = client.begun_s + limits.head_timeout_s
            what = f"no complete request head within {limits.head_timeout_s:g} s"
        else:
            end_s = client.last_byte_s + limits.body_pause_max_s
            what = f"no byte of the request's body for {limits.body_pause_max_s:g} s"
        if now_s < end_s:
            return end_s
        self._late = what
        client.bell.ring()
        return math.inf

    def _record(
        self,
        answer: Answer,
        request_id: bytes,
        client_id: bytes | None,
        decision: Decision,
        outcome: Outcome,
        exchange: Exchange | None,
        arrived_s: float,
    ) -> None:
        head = self._client.reader.head
        failed = decision if isinstance(decision, Failure) else None
        route = exchange.route if exchange is not None else None
        relay = exchange.relay if exchange is not None else None
        lease = exchange.lease if exchange is not None else None
        prompt_count, completion_count = usage_in(relay.tail) if relay is not None else (None, None)
        first_s = relay.first_output_s if relay is not None else None
        self._serving.plane.on_request(
            RequestRecord(
                request_id=request_id.decode(),
                client_request_id=client_id.decode() if client_id is not None else None,
                method=head.method.decode("latin-1") if head is not None else "",
                path=head.path if head is not None else "",
                status=answer.status or CLIENT_CLOSED_STATUS,
                outcome=outcome,
                code=failed.code if failed is not None else None,
                model=route.name if route is not None else None,
                deployment=route.deployment if route is not None else None,
                instance=lease.instance if lease is not None else None,
                streamed=answer.is_stream,
                arrived_s=arrived_s,
                waited_s=exchange.waited_s if exchange is not None else 0.0,
                first_output_s=first_s - arrived_s if first_s is not None else None,
                duration_s=self._serving.poller.now_s - arrived_s,
                request_body_bytes=self._client.reader.body_count,
                answer_bytes=answer.sent_bytes,
                prompt_tokens=prompt_count,
                completion_tokens=completion_count,
            )
        )

    def _report_bug(self, error: Exception) -> None:
        """Tell whoever watches, and the client if it has nothing yet."""
        answer = self._answer
        if answer is not None and not answer.status and self._client.gone is None:
            answer.closes = True
            answer.fail(failure("internal", "an internal error ended this request"))
        self._serving.plane.on_bug(error)


def _answer_here(answer: Answer, decision: Decision) -> Outcome:
    if isinstance(decision, LocalAnswer):
        answer.whole(200, _JSON, decision.body)
        return Outcome.ANSWERED
    assert isinstance(decision, Failure), "a request for an engine is answered by it"
    answer.fail(decision)
    return Outcome.REFUSED


def _identity(request_id: bytes, client_id: bytes | None) -> bytes:
    """The header lines with both request ids."""
    if client_id is None:
        return b"x-capyctl-request-id: %b\r\n" % request_id
    return b"x-capyctl-request-id: %b\r\nx-request-id: %b\r\n" % (request_id, client_id)

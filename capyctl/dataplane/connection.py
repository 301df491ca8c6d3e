"""One client connection: request after request, each answered before the next is read."""

from __future__ import annotations

import math

from capyctl.dataplane.admit import too_large
from capyctl.dataplane.answer import Answer
from capyctl.dataplane.client import Client
from capyctl.dataplane.doors import Decision, LocalAnswer, Passing
from capyctl.dataplane.failures import Failure, failure, malformed
from capyctl.dataplane.heads import RequestHead
from capyctl.dataplane.records import Outcome, RequestRecord, usage_in
from capyctl.dataplane.request_ids import echoed
from capyctl.dataplane.routes import EnginePath
from capyctl.dataplane.serving import Serving

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLIENT_CLOSED_STATUS = 499


class Connection:
    """Owns a client's socket from acceptance to its close.

    A request that can be sent on at once is served by callbacks alone. Whatever has to wait, and
    whatever goes wrong, is handed to the task in `run`.

    ``over_cap``: there are too many connections; the first request is refused.
    """

    __slots__ = (
        "_answer",
        "_arrived_s",
        "_bug",
        "_client",
        "_client_id",
        "_continued",
        "_decision",
        "_exchange",
        "_is_relaying",
        "_late",
        "_limits",
        "_over_cap",
        "_plane",
        "_request_id",
        "_serving",
    )

    def __init__(self, serving: Serving, client: Client, *, over_cap: bool = False) -> None:
        self._serving = serving
        self._plane = serving.plane
        self._limits = serving.plane.limits
        self._client = client
        self._over_cap = over_cap
        self._late: str | None = None
        """What the client took too long with."""
        self._bug: Exception | None = None
        """Of a callback; the task raises it."""
        self._request_id = b""
        self._client_id: bytes | None = None
        self._arrived_s = 0.0
        self._answer: Answer | None = None
        self._decision: Decision | None = None
        self._exchange: Passing | None = None
        self._continued = False
        self._is_relaying = False
        """The exchange goes by callbacks; the task has nothing to do with it."""

    async def run(self) -> None:
        """Serve requests until the connection ends. Cancelling closes it."""
        client = self._client
        client.on_news = self._take_news
        try:
            self._read_next()
            while await self._serve_one():
                self._read_next()
        except Exception as error:
            self._report_bug(error)
        finally:
            if self._exchange is not None:
                self._exchange.abandon()
            answer = self._answer
            client.close(reset=answer is not None and answer.needs_reset)

    def drop(self) -> None:
        """End it now, whatever is under way; not a byte is passed any more."""
        self._client.lose("closed")
        self._client.socket.shut_down()

    def _read_next(self) -> None:
        self._answer = None
        self._decision = None
        self._exchange = None
        self._continued = False
        client = self._client
        client.look = self._look
        client.begin_reading()
        client.arm(client.begun_s + self._limits.connection_idle_max_s)

    def _take_news(self) -> bool:
        """Serve a complete request by callbacks. False when the task is needed."""
        try:
            return self._serve_by_callbacks()
        except Exception as error:
            self._bug = error
            return False

    def _serve_by_callbacks(self) -> bool:
        if not self._client.reader.complete or self._exchange is not None:
            return False
        decision = self._decide()
        if not isinstance(decision, EnginePath):
            return False
        self._prepare(decision)
        exchange = self._exchange
        if exchange is None or not exchange.start():
            return False
        relay = exchange.relay
        assert relay is not None, "an exchange has started without a relay"
        relay.on_end = self._relay_ended
        self._is_relaying = True
        return True

    def _relay_ended(self) -> None:
        self._is_relaying = False
        exchange, answer, client = self._exchange, self._answer, self._client
        assert exchange is not None, "a relay without an exchange ended"
        assert answer is not None, "a relay without an answer ended"
        simple = exchange.is_complete and not client.is_blocked and not answer.closes
        if not simple or client.gone is not None:
            client.bell.ring()
            return
        exchange.finish()
        self._record(answer, None)
        self._read_next()

    async def _serve_one(self) -> bool:
        """Answer what callbacks cannot. True when another request may follow."""
        decision = await self._receive()
        if decision is None:
            return False
        if self._answer is None:
            self._prepare(decision)
        answer, exchange = self._answer, self._exchange
        assert answer is not None, "a request is answered by nothing"
        failed: Failure | None = None
        if exchange is not None:
            await exchange.run()
            failed = exchange.failure
        elif isinstance(self._decision, LocalAnswer):
            answer.whole(200, self._decision.lines, self._decision.body)
        else:
            failed = self._decision if isinstance(self._decision, Failure) else None
            assert failed is not None, "a request for an engine is answered by it"
            answer.fail(failed)
        self._record(answer, failed)
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
        """What the task is needed for: a decision as soon as it can be made; None at the end."""
        client = self._client
        reader = client.reader
        while True:
            if self._bug is not None:
                raise self._bug
            if self._is_relaying:
                await client.bell.wait()
                continue
            if self._exchange is not None:
                return self._decision
            if client.gone is not None:
                return None
            decision = self._decided()
            if decision is not None:
                return decision
            if reader.head is not None and self._wants_continue(reader.head):
                client.push(CONTINUE)
            await client.bell.wait()

    def _decided(self) -> Decision | None:
        client = self._client
        reader = client.reader
        decision: Decision | None = None
        if client.bad is not None:
            decision = malformed(client.bad.message, client.bad.status)
        elif self._late is not None:
            decision = malformed(self._late, 408)
        elif reader.head is not None:
            decision = self._decide()
            if isinstance(decision, EnginePath) and not reader.complete:
                decision = too_large(self._plane) if reader.stopped else None
        if decision is not None:
            self._decision = decision
        return decision

    def _decide(self) -> Decision:
        """By the head alone, once a request."""
        if self._decision is None:
            head = self._client.reader.head
            assert head is not None, "a request is decided on without its head"
            if self._over_cap:
                count = self._limits.connections_max
                what = f"all {count} connections of this server are taken"
                self._decision = failure("unavailable", what)
            else:
                self._decision = self._serving.door.check_head(head)
        return self._decision

    def _wants_continue(self, head: RequestHead) -> bool:
        """Once a request."""
        reader = self._client.reader
        wants = head.expects_continue and not reader.complete and not reader.body_count
        wants, self._continued = wants and not self._continued, True
        return wants

    def _prepare(self, decision: Decision) -> None:
        """The answer to the request, and the exchange if an engine is to give it."""
        client, serving = self._client, self._serving
        reader = client.reader
        head = reader.head
        self._arrived_s = client.last_byte_s
        self._request_id = serving.ids.fresh()
        self._client_id = echoed(head.headers.get(b"x-request-id")) if head is not None else None
        self._answer = answer = Answer(client, head, self._identity(head))
        if not reader.complete or self._over_cap or self._plane.state.shutting_down:
            answer.closes = True
        if not isinstance(decision, EnginePath):
            return
        assert head is not None, "a path was found without a head"
        client.begin_answering()
        begun = serving.door.begin(serving, client, head, decision, answer, self._arrived_s)
        if isinstance(begun, Failure):
            self._decision = begun
        else:
            self._exchange = begun

    def _identity(self, head: RequestHead | None) -> bytes:
        """The header lines that every answer has: ids, and what browsers of others may read."""
        if not self._serving.door.is_public:
            return b""
        lines = b"x-capyctl-request-id: %b\r\n" % self._request_id
        if self._client_id is not None:
            lines += b"x-request-id: %b\r\n" % self._client_id
        cors = self._plane.cors
        return lines if cors is None or head is None else lines + cors.lines(head.headers)

    def _look(self, now_s: float) -> float:
        """At each alarm while a request is awaited or arriving."""
        client, limits = self._client, self._limits
        reader = client.reader
        if not reader.begun:
            end_s = client.begun_s + limits.connection_idle_max_s
            if now_s >= end_s:
                client.socket.end_sending()
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

    def _record(self, answer: Answer, failed: Failure | None) -> None:
        reader, exchange, arrived_s = self._client.reader, self._exchange, self._arrived_s
        head, client_id = reader.head, self._client_id
        outcome = Outcome.ANSWERED if failed is None else Outcome.REFUSED
        model = deployment = instance = first_s = prompt_count = completion_count = None
        waited_s = 0.0
        if exchange is not None:
            route, lease, relay = exchange.route, exchange.lease, exchange.relay
            outcome, waited_s = exchange.outcome, exchange.waited_s
            if route is not None:
                model, deployment = route.name, route.deployment
            instance = lease.instance if lease is not None else None
            if relay is not None:
                prompt_count, completion_count = usage_in(relay.tail)
                if relay.first_output_s is not None:
                    first_s = relay.first_output_s - arrived_s
        self._plane.on_request(
            RequestRecord(
                request_id=self._request_id.decode(),
                client_request_id=client_id.decode() if client_id is not None else None,
                method=head.method.decode("latin-1") if head is not None else "",
                path=head.path if head is not None else "",
                status=answer.status or CLIENT_CLOSED_STATUS,
                outcome=outcome,
                code=failed.code if failed is not None else None,
                model=model,
                deployment=deployment,
                instance=instance,
                streamed=answer.is_stream,
                arrived_s=arrived_s,
                waited_s=waited_s,
                first_output_s=first_s,
                duration_s=self._serving.poller.now_s - arrived_s,
                request_body_bytes=reader.body_count,
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
        self._plane.on_bug(error)

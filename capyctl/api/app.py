"""Puts the management API together: its routes, what comes before them, and how it refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from quart import ResponseReturnValue, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from capyctl.api.answers import refusal
from capyctl.api.auth import AdminToken, check_host
from capyctl.api.carrying import Carrying
from capyctl.api.changes import Changes
from capyctl.api.events import Events
from capyctl.api.exchange import Exchange
from capyctl.api.hosts import Hosts
from capyctl.api.limits import Limits
from capyctl.api.reads import Reads, no_phases, no_sources
from capyctl.api.work import Work
from capyctl.contracts.clock import Clock
from capyctl.contracts.management import Management
from capyctl.domain.errors import Refused

PREFIX = "/management/v1"
_log = logging.getLogger(__name__)


class ManagementApp(QuartTrio):
    """The application. Needs ``nursery`` for its work: `serve_management` or a lifespan sets it."""

    def __init__(
        self,
        management: Management,
        *,
        token: AdminToken,
        limits: Limits,
        clock: Clock,
        latency: Callable[[], Mapping[str, object]],
        model_sources: Callable[[], Sequence[str]],
    ) -> None:
        super().__init__("capyctl.api", static_folder=None, template_folder=None)
        self.limits = limits
        self.url_map.merge_slashes = False
        self.config["MAX_CONTENT_LENGTH"] = limits.body_bytes_max
        self.config["BODY_TIMEOUT"] = None
        self.config["BACKGROUND_TASK_SHUTDOWN_TIMEOUT"] = limits.graceful_s
        self._token = token
        work = Work(lambda: self.nursery)
        self.events = Events(management, work, limits=limits)
        carrying = Carrying(management, work, limits=limits)
        changes = Changes(management, carrying, limits=limits, clock=clock)
        reads = Reads(management, work, limits=limits, latency=latency, model_sources=model_sources)
        self._add_routes(changes, reads, Hosts(management, work, carrying, limits=limits))
        self.before_request(self._let_in)
        self.register_error_handler(Refused, self._refused)
        self.register_error_handler(HTTPException, self._refused_by_quart)
        self.register_error_handler(Exception, self._failed)

    def _add_routes(self, changes: Changes, reads: Reads, hosts: Hosts) -> None:
        one = "/deployments/<id>"
        rows: list[tuple[str, str, Callable[..., Any]]] = [
            ("GET", "/snapshot", reads.snapshot),
            ("GET", "/events", self.events.stream),
            ("POST", "/deployments", changes.create),
            ("PUT", one, changes.replace),
            ("POST", f"{one}/actions", changes.act),
            ("POST", f"{one}/instances/<index>/actions", changes.act_on_instance),
            ("GET", f"{one}/effective-config", reads.effective_config),
            ("GET", f"{one}/engine-log", reads.engine_log),
            ("GET", "/metrics/load", reads.load),
            ("GET", "/metrics/latency", reads.latency),
            ("GET", "/model-sources", reads.model_sources),
            ("GET", "/hosts", hosts.every),
            ("GET", "/hosts/<id>", hosts.one),
            ("POST", "/hosts/<id>/actions", hosts.act),
            ("POST", "/invitations", hosts.invite),
            ("GET", "/openapi.json", reads.openapi),
        ]
        for method, path, handler in rows:
            self.add_url_rule(
                PREFIX + path,
                endpoint=f"{method} {path}".replace(".", "_"),
                view_func=handler,
                methods=[method],
                provide_automatic_options=False,
            )

    async def asgi_app(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if scope["type"] == "http":
            await Exchange(scope, receive, send, self.limits).run(super().asgi_app)
        elif scope["type"] == "lifespan":
            await super().asgi_app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000, "reason": None})

    async def _let_in(self) -> None:
        """Comes before routing shows: without a token an unknown path is a 401 as well."""
        headers = request.scope["headers"]
        check_host(headers)
        self._token.check(headers)
        if request.method == "HEAD" and request.routing_exception is None:
            raise MethodNotAllowed(["GET"])

    async def _refused(self, refused: Refused) -> ResponseReturnValue:
        return refusal(refused)

    async def _refused_by_quart(self, error: HTTPException) -> ResponseReturnValue:
        if isinstance(error, MethodNotAllowed):
            answer = refusal(Refused("method_not_allowed", "This path does not take this method"))
            answer.headers["Allow"] = ", ".join(sorted({*(error.valid_methods or ())} - {"HEAD"}))
            return answer
        if error.code == 404:
            return refusal(Refused("not_found", "There is no such path in the management API"))
        if error.code is not None and error.code < 500:
            return refusal(Refused("invalid_request", "The request could not be read"))
        return await self._failed(error)

    async def _failed(self, error: Exception) -> ResponseReturnValue:
        _log.error("a handler of the management API failed", exc_info=error)
        return refusal(Refused("internal", "An internal error; the daemon's log says more"))


def make_app(
    management: Management,
    *,
    token: str,
    clock: Clock,
    inference_key: str | None = None,
    limits: Limits | None = None,
    latency: Callable[[], Mapping[str, object]] = no_phases,
    model_sources: Callable[[], Sequence[str]] = no_sources,
) -> ManagementApp:
    """The management API over ``management``.

    Args:
        token: the admin token; its digest is kept, not itself.
        clock: only its ``wall_ms`` is read, for how long an evicting start may be waited for.
        inference_key: must be another one.
        latency: the body of metrics/latency.
        model_sources: keys of the remote sources in use.

    Raises:
        ValueError: the token is malformed, or the same as the inference key.
    """
    return ManagementApp(
        management,
        token=AdminToken(token, others=() if inference_key is None else (inference_key,)),
        limits=Limits() if limits is None else limits,
        clock=clock,
        latency=latency,
        model_sources=model_sources,
    )

"""What is asked for and whether it may: key, path, size, model. In the contract's order."""

from __future__ import annotations

import hmac

import attrs
import msgspec

from capyctl.dataplane.bodies import (
    BadBody,
    Body,
    check_cache_salt,
    read_form,
    read_json,
    with_form_model,
    with_json_model,
)
from capyctl.dataplane.doors import Decision, LocalAnswer
from capyctl.dataplane.failures import SHUTTING_DOWN, Failure, failure
from capyctl.dataplane.heads import RequestHead
from capyctl.dataplane.plane import Plane
from capyctl.dataplane.routes import (
    HEALTH_PATH,
    MODELS_PATH,
    BodyKind,
    EnginePath,
    Route,
    RouteTable,
)

READING_METHODS = frozenset({b"GET", b"HEAD"})
_HEALTHY = b'{"status":"ok"}'


@attrs.define(kw_only=True, eq=False)
class Admitted:
    """A request for a model that exists, on a path that its engine has."""

    route: Route
    path: EnginePath
    body: Body
    content_type: bytes
    streams: bool
    """The client asked for a stream, on a path that can be one."""
    model_span: tuple[int, int] | None = None
    """Where the model's name stands in a form."""

    def body_for(self, served_name: str) -> Body:
        """The body as the engine gets it: untouched, unless it knows the model by another name."""
        if served_name == self.route.name:
            return self.body
        if self.model_span is not None:
            return with_form_model(self.body, self.model_span, served_name)
        return with_json_model(self.body, served_name)


def check_head(plane: Plane, head: RequestHead) -> Decision:
    """Decide from the head alone, so that a refusal needs no body."""
    if head.engine_path is None and head.path == HEALTH_PATH and head.method in READING_METHODS:
        return SHUTTING_DOWN if plane.shutting_down else LocalAnswer(body=_HEALTHY)
    if plane.cors is not None and not plane.state.shutting_down:
        preflight = plane.cors.preflight(head.method, head.headers)
        if preflight is not None:
            return LocalAnswer(body=b"", lines=preflight)
    key = plane.api_key
    if key is not None and head.fitting_key is not key:
        if not _key_fits(key, head):
            return failure("unauthorized", "a valid API key is needed (Authorization: Bearer …)")
        head.fitting_key = key
    if plane.state.shutting_down:
        return SHUTTING_DOWN
    found = head.engine_path
    if found is None:
        return _other_path(plane, head)
    if head.method != b"POST":
        return _wrong_method(head, "POST")
    if b"content-encoding" in head.headers:
        return failure("unsupported_media_type", "a body with a Content-Encoding is not accepted")
    return found


def check_body(
    table: RouteTable, head: RequestHead, path: EnginePath, body: Body
) -> Failure | Admitted:
    """Find the route that the body names."""
    content_type = head.headers.get(b"content-type", b"application/json")
    span: tuple[int, int] | None = None
    salt: object = msgspec.UNSET
    try:
        if path.body is BodyKind.JSON:
            asked = read_json(body)
            model, streams, salt = asked.model, asked.streams, asked.cache_salt
        else:
            form = read_form(content_type, body)
            model, streams, span = form.model, form.streams, form.model_span
        route = table.models.get(model)
        if route is None:
            return failure("unknown_model", f"there is no model {model[:200]!r}", param="model")
        if path.path not in route.engine_paths:
            return failure(
                "unsupported_route", f"the engine of {model[:200]!r} does not serve {path.path}"
            )
        if salt is not msgspec.UNSET:
            check_cache_salt(salt)
            if not route.takes_cache_salt:
                return failure(
                    "cache_salt_unsupported",
                    f"the engine of {model[:200]!r} takes no `cache_salt`",
                    param="cache_salt",
                )
    except BadBody as error:
        return failure("invalid_request", error.message, param=error.param)
    return Admitted(
        route=route,
        path=path,
        body=body,
        content_type=content_type,
        streams=streams and path.may_stream,
        model_span=span,
    )


def too_large(plane: Plane) -> Failure:
    return failure(
        "request_too_large",
        f"the body is larger than {plane.limits.body_bytes_max} bytes "
        "(`queue.max_buffered_bytes_total`)",
    )


def _key_fits(api_key: bytes, head: RequestHead) -> bool:
    headers = head.headers
    bearer, plain = headers.get(b"authorization"), headers.get(b"x-api-key")
    if head.repeated and (b"authorization" in head.repeated or b"x-api-key" in head.repeated):
        return False
    if bearer is None:
        return plain is not None and hmac.compare_digest(plain, api_key)
    scheme, _, token = bearer.partition(b" ")
    token = token.strip(b" ")
    fits = hmac.compare_digest(token, api_key) and scheme.lower() == b"bearer"
    return fits and (plain is None or hmac.compare_digest(plain, token))


def _other_path(plane: Plane, head: RequestHead) -> Failure | LocalAnswer:
    if head.path == MODELS_PATH:
        if head.method in READING_METHODS:
            return LocalAnswer(body=plane.routes().listing)
        return _wrong_method(head, "GET, HEAD")
    if head.path == HEALTH_PATH:
        return _wrong_method(head, "GET, HEAD")
    return failure("not_found", f"there is no path {head.path[:200]!r}")


def _wrong_method(head: RequestHead, allow: str) -> Failure:
    method = head.method.decode("latin-1")
    return failure("method_not_allowed", f"{head.path} takes {allow}, not {method}", allow=allow)

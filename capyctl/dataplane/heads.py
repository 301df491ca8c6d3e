"""Heads of requests and answers, parsed by httptools; what of them goes on to the other side."""

from __future__ import annotations

import re

import httptools

from capyctl.dataplane.failures import status_line
from capyctl.dataplane.routes import ENGINE_PATHS, EnginePath
from capyctl.domain.launches import Endpoint

HEAD_END = b"\r\n\r\n"
LENGTH_DIGITS_MAX = 15

_WANTED = re.compile(
    rb"\r\n(accept|access-control-request-headers|access-control-request-method|authorization"
    rb"|content-encoding|content-length|content-type|expect|host|origin|transfer-encoding"
    rb"|x-api-key|x-capyctl-generation|x-capyctl-launch|x-capyctl-metrics|x-request-id)"
    rb":[ \t]*([^\r\n]*)",
    re.IGNORECASE,
)
"""In a head that the parser has accepted: no folded lines, no bare line ends."""
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")
_FRAMING = re.compile(
    rb"\r\n(connection|content-length|content-type|transfer-encoding|x-capyctl-ingress)"
    rb":[ \t]*([^\r\n]*)",
    re.IGNORECASE,
)
_NOT_PASSED_BACK = re.compile(
    rb"\r\n(?:connection|content-length|keep-alive|proxy-[a-z]+|te|trailer|transfer-encoding"
    rb"|upgrade|x-request-id|x-capyctl-[a-z-]+|access-control-[a-z-]+):[^\r\n]*",
    re.IGNORECASE,
)


class BadHead(ValueError):
    """A head that cannot be answered as a request; ``status`` is 400 or 431."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class RequestHead:
    """A client's request line and the headers that matter here, lower-case names."""

    __slots__ = (
        "engine_path",
        "expects_continue",
        "fitting_key",
        "headers",
        "is_chunked",
        "keep_alive",
        "method",
        "old_version",
        "path",
        "query",
        "repeated",
        "target",
    )

    method: bytes
    old_version: bool
    """HTTP/1.0: its answer ends with the connection."""
    keep_alive: bool
    path: str
    """As sent, nothing decoded, without the query."""
    query: bytes
    """With its question mark; empty when there is none."""
    is_chunked: bool
    expects_continue: bool
    engine_path: EnginePath | None
    """The path, where engines serve it."""
    fitting_key: bytes | None
    """The API key that this head was found to carry."""

    def __init__(self) -> None:
        self.fitting_key = None
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.repeated: frozenset[bytes] = frozenset()

    def on_url(self, target: bytes) -> None:
        self.target = target


def read_request_head(head: bytes, headers_max: int) -> RequestHead:
    """Parse one complete head, its blank line included.

    Raises:
        BadHead: it is malformed, has too many headers, or a body of unknown framing.
    """
    read = RequestHead()
    parser = httptools.HttpRequestParser(read)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        # An upgrade is an offer that a server may pass over.
        pass
    except httptools.HttpParserError as error:
        raise BadHead(f"the request is not valid HTTP: {error}") from None
    if head.count(b"\r\n") - 2 > headers_max:
        raise BadHead(f"the request has more than {headers_max} headers", 431)
    version = parser.get_http_version()
    if version not in ("1.1", "1.0"):
        raise BadHead(f"HTTP/{version} is not spoken here")
    read.method = parser.get_method()
    read.old_version = version == "1.0"
    read.keep_alive = not read.old_version and parser.should_keep_alive()
    found = _WANTED.findall(head)
    read.headers = headers = {name.lower(): value.rstrip() for name, value in found}
    if len(headers) < len(found):
        names = [name.lower() for name, _ in found]
        read.repeated = frozenset(name for name in names if names.count(name) > 1)
    _check_host(read)
    _split_target(read)
    _settle_framing(read)
    read.engine_path = ENGINE_PATHS.get(read.path)
    return read


def _check_host(read: RequestHead) -> None:
    """As RFC 9112 has it in section 3.2; HTTP/1.0 knew no Host."""
    if b"host" in read.repeated:
        raise BadHead("the request has more than one Host header")
    host = read.headers.get(b"host")
    if host is None:
        if not read.old_version:
            raise BadHead("the request has no Host header, as HTTP/1.1 demands")
    elif _HOST.fullmatch(host) is None:
        raise BadHead("the request's Host header is no name or address")


def _split_target(read: RequestHead) -> None:
    target = read.target
    if not target.startswith(b"/") and b"://" in target[:10]:
        target = b"/" + target.split(b"/", 3)[3] if target.count(b"/") >= 3 else b"/"
    path, mark, query = target.partition(b"?")
    read.path = path.partition(b"#")[0].decode("latin-1")
    read.query = mark + query


def _settle_framing(read: RequestHead) -> None:
    headers = read.headers
    read.is_chunked = False
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if coding.strip().lower() != b"chunked" or b"transfer-encoding" in read.repeated:
            raise BadHead("the only Transfer-Encoding that is understood is chunked")
        read.is_chunked = True
    length = headers.get(b"content-length")
    if length is not None:
        unclear = coding is not None or b"content-length" in read.repeated
        if unclear or not length.isdigit() or len(length) > LENGTH_DIGITS_MAX:
            raise BadHead("the length of the body is not clear")
    read.expects_continue = (
        not read.old_version and headers.get(b"expect", b"").lower() == b"100-continue"
    )


class AnswerHead:
    """An engine's status and headers; hop-by-hop ones and the length apart."""

    __slots__ = (
        "ends_with_connection",
        "ingress_word",
        "is_chunked",
        "is_event_stream",
        "is_json",
        "keep_alive",
        "passed_lines",
        "status",
    )

    status: int
    is_chunked: bool
    ends_with_connection: bool
    """Nothing else tells where the body ends."""
    ingress_word: str | None
    """Why an ingress answers in place of the engine; counts in answers of an ingress only."""
    is_event_stream: bool
    is_json: bool
    keep_alive: bool
    passed_lines: bytes
    """The header lines for the client, framing left out."""


class _NoCallbacks:
    __slots__ = ()


_NO_CALLBACKS = _NoCallbacks()


def read_answer_head(head: bytes) -> AnswerHead:
    """Parse one complete head of an engine's answer.

    Raises:
        ValueError: it is no HTTP answer.
    """
    parser = httptools.HttpResponseParser(_NO_CALLBACKS)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        raise ValueError("the engine wants to switch protocols") from None
    except httptools.HttpParserError as error:
        raise ValueError(f"the engine's answer is not valid HTTP: {error}") from None
    read = AnswerHead()
    read.status = status = parser.get_status_code()
    found = {name.lower(): value for name, value in _FRAMING.findall(head)}
    length = found.get(b"content-length")
    if length is not None and (not length.strip().isdigit() or len(length) > LENGTH_DIGITS_MAX):
        raise ValueError("the length of the engine's answer is not clear")
    word = found.get(b"x-capyctl-ingress")
    read.ingress_word = None if word is None else word.strip().decode("latin-1")
    read.is_chunked = found.get(b"transfer-encoding", b"").strip().lower() == b"chunked"
    content_type = found.get(b"content-type", b"").lower()
    read.is_event_stream = content_type.startswith(b"text/event-stream")
    read.is_json = content_type.startswith(b"application/json")
    # The parser itself holds an answer without framing to end with the connection.
    framed = read.is_chunked or length is not None or status in (204, 304)
    read.ends_with_connection = not framed
    read.keep_alive = framed and parser.should_keep_alive()
    start = head.index(b"\r\n")
    lines = _NOT_PASSED_BACK.sub(b"", head[start:-2])
    named = found.get(b"connection")
    if named is not None:
        lines = _without(lines, named)
    read.passed_lines = lines[2:]
    return read


def _without(lines: bytes, named: bytes) -> bytes:
    """Leave out the headers that a Connection header names."""
    names = {name.strip().lower() for name in named.split(b",")}
    kept = [line for line in lines.split(b"\r\n") if line.partition(b":")[0].lower() not in names]
    return b"\r\n".join(kept)


def engine_request(
    head: RequestHead, endpoint: Endpoint, content_type: bytes, body_bytes: int
) -> bytes:
    """The head that is sent to an engine. Nothing of the client's but these two and the query."""
    accept = head.headers.get(b"accept", b"*/*")
    return (
        b"POST %b%b HTTP/1.1\r\nHost: %b\r\nAccept: %b\r\nAccept-Encoding: identity\r\n"
        b"Content-Type: %b\r\nContent-Length: %d\r\n%b\r\n"
    ) % (
        head.path.encode("latin-1"),
        head.query,
        host_header(endpoint),
        accept,
        content_type,
        body_bytes,
        _own_lines(endpoint),
    )


def _own_lines(endpoint: Endpoint) -> bytes:
    """An engine's key; or, for an ingress, which engine is meant."""
    ingress = endpoint.ingress
    if ingress is not None:
        named = (ingress.launch.encode(), ingress.generation)
        return b"x-capyctl-launch: %b\r\nx-capyctl-generation: %d\r\n" % named
    return b"" if endpoint.key is None else b"Authorization: Bearer %b\r\n" % endpoint.key.encode()


def host_header(endpoint: Endpoint) -> bytes:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}".encode()


def answer_head(status: int, lines: bytes, identity: bytes, *, closes: bool) -> bytes:
    """A complete head for the client. ``identity`` are the lines with the request's ids."""
    end = b"Connection: close\r\n\r\n" if closes else b"\r\n"
    return b"".join((status_line(status), lines, identity, end))

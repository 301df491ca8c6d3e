"""Heads of requests and answers, parsed by httptools; what of them goes on to the other side."""

from __future__ import annotations

import httptools

from capyctl.dataplane.failures import status_line
from capyctl.domain.launches import Endpoint

HEAD_END = b"\r\n\r\n"

_WANTED = frozenset(
    {
        b"accept",
        b"authorization",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"transfer-encoding",
        b"x-api-key",
        b"x-capyctl-metrics",
        b"x-request-id",
    }
)
_NOT_PASSED_BACK = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"content-length",
        b"upgrade",
        b"x-request-id",
        b"x-capyctl-request-id",
        b"x-capyctl-timing",
    }
)
_CORS = b"access-control-"


class BadHead(ValueError):
    """A head that cannot be answered as a request; ``status`` is 400 or 431."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class RequestHead:
    """A client's request line and the headers that matter here, lower-case names."""

    __slots__ = (
        "content_length",
        "expects_continue",
        "header_count",
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
    content_length: int
    expects_continue: bool

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.repeated: set[bytes] = set()
        self.header_count = 0

    def on_url(self, target: bytes) -> None:
        self.target = target

    def on_header(self, name: bytes, value: bytes) -> None:
        self.header_count += 1
        name = name.lower()
        if name in _WANTED:
            if name in self.headers:
                self.repeated.add(name)
            else:
                self.headers[name] = value


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
    if read.header_count > headers_max:
        raise BadHead(f"the request has more than {headers_max} headers", 431)
    version = parser.get_http_version()
    if version not in ("1.1", "1.0"):
        raise BadHead(f"HTTP/{version} is not spoken here")
    read.method = parser.get_method()
    read.old_version = version == "1.0"
    read.keep_alive = not read.old_version and parser.should_keep_alive()
    _split_target(read)
    _settle_framing(read)
    return read


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
    read.content_length = 0
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if coding.strip().lower() != b"chunked" or b"transfer-encoding" in read.repeated:
            raise BadHead("the only Transfer-Encoding that is understood is chunked")
        read.is_chunked = True
    length = headers.get(b"content-length")
    if length is not None:
        if coding is not None or b"content-length" in read.repeated or not length.isdigit():
            raise BadHead("the length of the body is not clear")
        read.content_length = int(length)
    read.expects_continue = (
        not read.old_version and headers.get(b"expect", b"").lower() == b"100-continue"
    )


class AnswerHead:
    """An engine's status and headers; hop-by-hop ones apart."""

    __slots__ = (
        "_dropped",
        "content_length",
        "content_type",
        "is_chunked",
        "keep_alive",
        "lines",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        self.lines: list[tuple[bytes, bytes, bytes]] = []
        """Lower-case name, name, value of what may be passed on."""
        self.content_length: int | None = None
        self.content_type = b""
        self.is_chunked = False
        self.keep_alive = False
        self._dropped: set[bytes] = set()

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower not in _NOT_PASSED_BACK:
            if lower == b"content-type":
                self.content_type = value.lower()
            if not lower.startswith(_CORS):
                self.lines.append((lower, name, value))
        elif lower == b"content-length":
            self.content_length = int(value)
        elif lower == b"transfer-encoding":
            self.is_chunked = value.strip().lower() == b"chunked"
        elif lower == b"connection":
            self._dropped.update(part.strip().lower() for part in value.split(b","))

    @property
    def is_event_stream(self) -> bool:
        return self.content_type.startswith(b"text/event-stream")

    @property
    def is_json(self) -> bool:
        return self.content_type.startswith(b"application/json")

    @property
    def has_no_body(self) -> bool:
        return self.status in (204, 304) or self.content_length == 0

    def passed_lines(self) -> bytes:
        """The header lines for the client, framing left out."""
        dropped = self._dropped
        if dropped:
            kept = [(n, v) for lower, n, v in self.lines if lower not in dropped]
        else:
            kept = [(n, v) for _, n, v in self.lines]
        return b"".join([b"%b: %b\r\n" % line for line in kept])


def read_answer_head(head: bytes) -> AnswerHead:
    """Parse one complete head of an engine's answer.

    Raises:
        ValueError: it is no HTTP answer.
    """
    read = AnswerHead()
    parser = httptools.HttpResponseParser(read)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        raise ValueError("the engine wants to switch protocols") from None
    except httptools.HttpParserError as error:
        raise ValueError(f"the engine's answer is not valid HTTP: {error}") from None
    read.status = parser.get_status_code()
    framed = read.is_chunked or read.content_length is not None or read.status in (204, 304)
    # The parser itself holds an answer without framing to end with the connection.
    read.keep_alive = framed and parser.should_keep_alive()
    return read


def engine_request(
    head: RequestHead, endpoint: Endpoint, content_type: bytes, body_bytes: int
) -> bytes:
    """The head that is sent to an engine. Nothing of the client's but these two and the query."""
    accept = head.headers.get(b"accept", b"*/*")
    key = endpoint.key
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
        b"" if key is None else b"Authorization: Bearer %b\r\n" % key.encode(),
    )


def host_header(endpoint: Endpoint) -> bytes:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}".encode()


def answer_head(status: int, lines: bytes, identity: bytes, *, closes: bool) -> bytes:
    """A complete head for the client. ``identity`` are the lines with the request's ids."""
    end = b"Connection: close\r\n\r\n" if closes else b"\r\n"
    return b"".join((status_line(status), lines, identity, end))

"""What is looked at in a request's body: `model`, `stream`, `cache_salt`. The rest is the engine's.

Pure. A body is never written anew: where another name of the model must stand, only those bytes
are replaced.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import attrs
import msgspec

CACHE_SALT_BYTES_MAX = 1024
FORM_PARTS_MAX = 100
PART_HEAD_MAX = 8 * 1024

Body = bytes | bytearray

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_PART_NAME = re.compile(rb'content-disposition:[^\r\n]*;\s*name="?([^";\r\n]*)"?', re.IGNORECASE)
_HALF_A_PAIR = re.compile(rb"\\u[dD][89abAB]")
_POSITION = re.compile(r"\(byte (\d{1,12})\)")
_TRUE = frozenset({b"true", b"True", b"1"})


class BadBody(ValueError):
    """The body cannot be routed. ``param`` names the field at fault, where one is."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class Asked(NamedTuple):
    """What a body asks for. A repeated field counts with its last value, as engines read it."""

    model: str
    streams: bool
    cache_salt: object
    """As it stands in the body, of any type; UNSET when absent."""


class _Fields(msgspec.Struct):
    model: Any = msgspec.UNSET
    stream: Any = False
    cache_salt: Any = msgspec.UNSET


_decode = msgspec.json.Decoder(_Fields).decode
_text = msgspec.json.Decoder(str).decode


def read_json(body: Body) -> Asked:
    """Read the three fields of a JSON object.

    Raises:
        BadBody: no JSON object, or `model` is no non-empty string.
    """
    try:
        fields = _decode(body)
    except msgspec.ValidationError:
        raise BadBody("the body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadBody(f"the body is not valid JSON: {_why_no_json(body, str(error))}") from None
    except RecursionError:
        raise BadBody("the body is nested too deeply") from None
    model = fields.model
    if not isinstance(model, str) or not model:
        raise BadBody("`model` must be a non-empty string", "model")
    return Asked(model, fields.stream is True, fields.cache_salt)


def _why_no_json(body: Body, told: str) -> str:
    """What is wrong with it, from what the decoder says."""
    if not body.strip():
        return "it is empty"
    if body.startswith(b"\xef\xbb\xbf"):
        return "it begins with a byte order mark"
    if "truncated" in told and _HALF_A_PAIR.search(body) is not None:
        return "it ends in the middle of a value, or a \\u escape in it is half of a pair"
    if "truncated" in told:
        return "it ends in the middle of a value"
    if "trailing" in told:
        return "something follows the object"
    if "UTF-8" in told:
        try:
            body.decode()
        except UnicodeDecodeError as error:
            return f"the byte 0x{body[error.start]:02x} at position {error.start} is not UTF-8"
    found = _POSITION.search(told)
    position = int(found.group(1)) if found is not None else len(body)
    if "invalid character" in told and position < len(body):
        byte = body[position]
        shown = repr(chr(byte)) if 0x20 < byte < 0x7F else f"the byte 0x{byte:02x}"
        return f"{shown} at position {position} does not belong there"
    return told.removeprefix("JSON is malformed: ")


def check_cache_salt(salt: object) -> None:
    """Raises:
    BadBody: it is no non-empty string of at most 1024 bytes.
    """
    if not isinstance(salt, str) or not salt or len(salt.encode()) > CACHE_SALT_BYTES_MAX:
        raise BadBody(
            f"`cache_salt` must be a non-empty string of at most {CACHE_SALT_BYTES_MAX} bytes",
            "cache_salt",
        )


def with_json_model(body: Body, model: str) -> bytes:
    """The same bytes with the last top-level `model` string replaced.

    ``body`` is one that `read_json` accepted.
    """
    depth = 0
    span: tuple[int, int] | None = None
    after_key = -1
    for token in _TOKEN.finditer(body):
        first = body[token.start()]
        if first == 0x22:
            if token.start() == after_key:
                span = token.span()
            elif depth == 1:
                colon = _COLON.match(body, token.end())
                is_key = colon is not None and _is_model_key(token.group())
                after_key = colon.end() if colon is not None and is_key else -1
        elif first in b"{[":
            depth += 1
        else:
            depth -= 1
    assert span is not None, "the body has no top-level model"
    return _spliced(body, span, msgspec.json.encode(model))


def _is_model_key(text: bytes) -> bool:
    if b"\\" not in text:
        return text == b'"model"'
    try:
        return _text(text) == "model"
    except msgspec.DecodeError:
        return False


@attrs.frozen(kw_only=True)
class AskedForm:
    """What a multipart form asks for, and where its `model` stands."""

    model: str
    streams: bool
    model_span: tuple[int, int]


def read_form(content_type: bytes, body: Body) -> AskedForm:
    """Read `model` and `stream` of a ``multipart/form-data`` body; files are passed over.

    Raises:
        BadBody: no such form, more than 100 parts, or `model` is no non-empty text.
    """
    boundary = _BOUNDARY.search(content_type)
    if not content_type.lower().lstrip().startswith(b"multipart/form-data") or boundary is None:
        raise BadBody("the body must be multipart/form-data with a boundary")
    delimiter = b"--" + (boundary.group(1) or boundary.group(2))
    spans = _part_spans(delimiter, body)
    span = spans.get(b"model")
    if span is None or span[0] == span[1]:
        raise BadBody("the form needs a non-empty field `model`", "model")
    try:
        model = bytes(body[span[0] : span[1]]).decode()
    except UnicodeDecodeError:
        raise BadBody("`model` is not UTF-8", "model") from None
    stream = spans.get(b"stream")
    streams = stream is not None and bytes(body[stream[0] : stream[1]]).strip() in _TRUE
    return AskedForm(model=model, streams=streams, model_span=span)


def with_form_model(body: Body, span: tuple[int, int], model: str) -> bytes:
    """The same form with other text in its `model` field."""
    return _spliced(body, span, model.encode())


def _part_spans(delimiter: bytes, body: Body) -> dict[bytes, tuple[int, int]]:
    """Where the content of each named part lies."""
    spans: dict[bytes, tuple[int, int]] = {}
    if body.startswith(delimiter):
        position = len(delimiter)
    else:
        position = body.find(b"\r\n" + delimiter)
        if position < 0:
            raise BadBody("the form does not contain its boundary")
        position += 2 + len(delimiter)
    for _ in range(FORM_PARTS_MAX):
        if body.startswith(b"--", position):
            return spans
        head_end = body.find(b"\r\n\r\n", position, position + PART_HEAD_MAX)
        content_end = body.find(b"\r\n" + delimiter, head_end + 2)
        if head_end < 0 or content_end < 0:
            raise BadBody("the form ends in the middle of a part")
        name = _PART_NAME.search(body, position, head_end)
        if name is not None:
            spans[bytes(name.group(1))] = (min(head_end + 4, content_end), content_end)
        position = content_end + 2 + len(delimiter)
    raise BadBody(f"the form has more than {FORM_PARTS_MAX} parts")


def _spliced(body: Body, span: tuple[int, int], text: bytes) -> bytes:
    view = memoryview(body)
    return b"".join((view[: span[0]], text, view[span[1] :]))

"""Frames of the link between a server and its hosts: one JSON object each, told apart by ``kind``.

A kind that is not known, or a field of another type than here, ends the session; fields that are
not known are left out, as a newer release may have more. What a field called ``order``, ``record``
or the like holds is in `wire/link_calls.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

FRAME_BYTES_MAX = 1 << 20
CALLS_COUNT_MAX = 4096
"""Calls that one host may have open; a session that asks for more is closed."""
DETAIL_CHARS_MAX = 4096
ID_PATTERN = "^[0-9A-HJKMNP-TV-Z]{26}$"

Ulid = Annotated[str, Field(pattern=ID_PATTERN)]
Name = Annotated[str, Field(min_length=1, max_length=64)]
Figure = Annotated[int, Field(ge=0, le=2**63 - 1)]
Age = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Detail = Annotated[str, Field(max_length=DETAIL_CHARS_MAX)]


class BadFrame(Exception):
    """What came is no frame of this protocol. The text says why, never what was in it."""


class FrameTooLarge(Exception):
    """A frame of our own that nobody would take."""


class Frame(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="ignore", frozen=True, use_attribute_docstrings=True
    )


# -- from the host ------------------------------------------------------------------------------


class Hello(Frame):
    """The first frame of a session."""

    kind: Literal["hello"] = "hello"
    protocol: Figure
    version: Name
    """Of capyctl on the host."""
    capabilities: list[Name] = Field(max_length=256)
    epoch: Ulid
    """One for each process of the host: another one means that it began anew."""
    publication: dict[str, Any]
    """A `domain.hosts.HostPublication`."""


class Synced(Frame):
    """The host has ended what the server does not know."""

    kind: Literal["synced"] = "synced"
    running: dict[str, bool]
    """Per launch of the sync: false only when it is certain that its process is gone."""
    calls: list[Ulid] = Field(max_length=CALLS_COUNT_MAX)
    """Those of the sync's calls that the host knows; it goes on with them."""


class Progress(Frame):
    """How far a download is: twice a second at most, and left out where it cannot be sent."""

    kind: Literal["progress"] = "progress"
    id: Ulid
    bytes_done: Figure
    bytes_total: Figure
    """0: not known."""


class Result(Frame):
    """A call has ended well. The host keeps this until the server has it."""

    kind: Literal["result"] = "result"
    id: Ulid
    value: Any = None
    running: bool | None = None
    """Of the launch that the call was about, at this time; null when it was about none."""


class Error(Frame):
    """A call has failed as its contract foresees, or in a way that none does (``failed``)."""

    kind: Literal["error"] = "error"
    id: Ulid
    type: Name
    code: Annotated[str, Field(max_length=128)] = ""
    detail: Detail = ""
    final: bool = False
    """``permanent`` or ``terminal`` of the contract."""
    again: bool = False
    running: bool | None = None


class MemoryFigures(Frame):
    age_s: Age
    """Between the look and this frame, by the host's monotonic clock."""
    available_bytes: dict[Name, Figure]


class EngineFigures(Frame):
    age_s: Age
    running: Figure
    waiting: Figure
    kv_usage_ratio: Annotated[float, Field(allow_inf_nan=False)] | None = None
    running_limit_count: Figure | None = None


class Heartbeat(Frame):
    """Every second or so. A newer one takes the place of one that waits to be sent."""

    kind: Literal["heartbeat"] = "heartbeat"
    seen: Figure = 0
    """Number of the last `watch` that had come before the host looked at its engines."""
    memory: MemoryFigures | None = None
    engines: dict[str, EngineFigures] = Field(default_factory=dict, max_length=1024)
    """Per launch, of those that the server watches."""


class Published(Frame):
    """What the host publishes has changed while the session is live."""

    kind: Literal["published"] = "published"
    publication: dict[str, Any]


class Renew(Frame):
    """The host wants another certificate: a third of its present one's time is over."""

    kind: Literal["renew"] = "renew"
    request: Annotated[str, Field(max_length=8192)]
    """A signing request for a fresh key, in PEM."""
    in_use: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the certificate that it shows now; that one stays valid."""


# -- from the server ----------------------------------------------------------------------------


class Welcome(Frame):
    """The host may stay; `sync` follows."""

    kind: Literal["welcome"] = "welcome"
    protocol: Figure
    version: Name
    compatibility: Name
    """What a host of its release is used for: `domain.hosts.Compatibility`."""
    heartbeat_s: Annotated[float, Field(gt=0.0, le=60.0)]
    silent_s: Annotated[float, Field(gt=0.0, le=3600.0)]
    """A host that hears nothing for this long dials again."""


class Refused(Frame):
    """Instead of a welcome, or at any time: the session is over."""

    kind: Literal["refused"] = "refused"
    code: Name
    message: Detail


class Sync(Frame):
    """What the server knows. A long list comes in several frames, all but the last with more."""

    kind: Literal["sync"] = "sync"
    launches: list[dict[str, Any]]
    """Each a `domain.launches.LaunchRecord`."""
    calls: list[Ulid] = Field(max_length=CALLS_COUNT_MAX)
    more: bool = False


class Call(Frame):
    """Comes again after a reconnect under the same id; the host then answers, or goes on."""

    kind: Literal["call"] = "call"
    id: Ulid
    method: Name
    params: dict[str, Any]


class Cancel(Frame):
    """Nobody waits for this call any more; what it had prepared is discarded."""

    kind: Literal["cancel"] = "cancel"
    id: Ulid


class Ack(Frame):
    """The server has this call's end: the host may forget it."""

    kind: Literal["ack"] = "ack"
    id: Ulid


class Watch(Frame):
    """The server's heartbeat: which engines it wants samples of."""

    kind: Literal["watch"] = "watch"
    number: Figure
    """One more each time, so that the server knows which samples are newer than its wish."""
    launches: list[Name] = Field(max_length=1024)


class Renewed(Frame):
    """The answer to `renew`."""

    kind: Literal["renewed"] = "renewed"
    certificate: Annotated[str, Field(max_length=8192)] | None = None
    """PEM; null when the host is to go on with what it has."""
    why: Detail = ""
    """Then: why, and what to do."""


HostFrame: TypeAlias = Hello | Synced | Progress | Result | Error | Heartbeat | Published | Renew
ServerFrame: TypeAlias = Welcome | Refused | Sync | Call | Cancel | Ack | Watch | Renewed
HOST_FRAMES: tuple[type[Frame], ...] = (
    Hello,
    Synced,
    Progress,
    Result,
    Error,
    Heartbeat,
    Published,
    Renew,
)
SERVER_FRAMES: tuple[type[Frame], ...] = (
    Welcome,
    Refused,
    Sync,
    Call,
    Cancel,
    Ack,
    Watch,
    Renewed,
)

F = TypeVar("F")
_HOST: TypeAdapter[HostFrame] = TypeAdapter(Annotated[HostFrame, Field(discriminator="kind")])
_SERVER: TypeAdapter[ServerFrame] = TypeAdapter(Annotated[ServerFrame, Field(discriminator="kind")])


def write_frame(frame: Frame) -> bytes:
    """The frame as it is sent.

    Raises:
        FrameTooLarge: it would have more than 1 MiB.
    """
    data = msgspec.json.encode(frame.model_dump())
    if len(data) > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"a frame of {len(data)} bytes; at most {FRAME_BYTES_MAX} are sent")
    return data


def read_host_frame(data: bytes) -> HostFrame:
    """A frame that came from a host. Raises BadFrame."""
    return _read(_HOST, data)


def read_server_frame(data: bytes) -> ServerFrame:
    """A frame that came from the server. Raises BadFrame."""
    return _read(_SERVER, data)


def _read(kinds: TypeAdapter[F], data: bytes) -> F:
    if len(data) > FRAME_BYTES_MAX:
        raise BadFrame(f"{len(data)} bytes; a frame has at most {FRAME_BYTES_MAX}")
    try:
        return kinds.validate_python(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise BadFrame("it is not one JSON value") from problem
    except ValidationError as problem:
        first = problem.errors(include_input=False, include_context=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the frame"
        raise BadFrame(f"{where}: {first['type']}") from None

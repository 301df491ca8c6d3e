"""Which paths there are, and which model serves which name: published whole, as a value."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import cached_property

import attrs
import msgspec

from capyctl.domain.ids import DeploymentId
from capyctl.gates.admission import Admission


class BodyKind(enum.Enum):
    JSON = "json"
    FORM = "form"


@attrs.frozen(kw_only=True)
class EnginePath:
    """One POST path that an engine may serve."""

    path: str
    body: BodyKind = BodyKind.JSON
    may_stream: bool = False
    """Its answers may be event streams, so a waiting client may get keep-alive comments."""


ENGINE_PATHS: Mapping[str, EnginePath] = {
    known.path: known
    for known in (
        EnginePath(path="/v1/chat/completions", may_stream=True),
        EnginePath(path="/v1/completions", may_stream=True),
        EnginePath(path="/v1/embeddings"),
        EnginePath(path="/v1/rerank"),
        EnginePath(path="/v1/score"),
        EnginePath(path="/v1/responses", may_stream=True),
        EnginePath(path="/v1/messages", may_stream=True),
        EnginePath(path="/v1/messages/count_tokens"),
        EnginePath(path="/tokenize"),
        EnginePath(path="/v1/audio/transcriptions", body=BodyKind.FORM, may_stream=True),
    )
}
MODELS_PATH = "/v1/models"
HEALTH_PATH = "/health"


@attrs.frozen(kw_only=True)
class Route:
    """One public name of one deployment. Its other names have routes of their own."""

    name: str
    deployment: DeploymentId
    admission: Admission = attrs.field(eq=False, repr=False)
    engine_paths: frozenset[str]
    """Those of `ENGINE_PATHS` that the model's engine serves."""
    family: str
    """``vllm``, ``sglang``, ``llamacpp`` or ``tensorfold``."""
    takes_cache_salt: bool
    request_deadline_s: float
    """From a request's arrival to its first output, waiting for the model included."""
    stream_idle_max_s: float = 120.0
    """Longest pause of an engine after its first output."""


@attrs.frozen(kw_only=True, slots=False)
class RouteTable:
    """All names, in the order in which they are listed. Replaced whole, never changed."""

    models: Mapping[str, Route] = attrs.field(factory=dict)

    @cached_property
    def listing(self) -> bytes:
        """The body of ``GET /v1/models``."""
        rows = [{"id": name, "object": "model"} for name in self.models]
        return msgspec.json.encode({"object": "list", "data": rows})

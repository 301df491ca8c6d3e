"""The door of the inference endpoint: keys, models, queues."""

from __future__ import annotations

from capyctl.dataplane.admit import check_body, check_head
from capyctl.dataplane.answer import Answer
from capyctl.dataplane.client import Client
from capyctl.dataplane.doors import Decision
from capyctl.dataplane.exchange import Exchange
from capyctl.dataplane.failures import Failure
from capyctl.dataplane.heads import RequestHead
from capyctl.dataplane.plane import Plane
from capyctl.dataplane.routes import EnginePath
from capyctl.dataplane.serving import Serving


class PublicDoor:
    """A `doors.Door` for clients with the API key."""

    __slots__ = ("_plane",)

    is_public = True

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def check_head(self, head: RequestHead) -> Decision:
        return check_head(self._plane, head)

    def begin(
        self,
        serving: Serving,
        client: Client,
        head: RequestHead,
        path: EnginePath,
        answer: Answer,
        arrived_s: float,
    ) -> Failure | Exchange:
        admitted = check_body(self._plane.routes(), head, path, client.reader.body)
        if isinstance(admitted, Failure):
            return admitted
        return Exchange(serving, client, head, admitted, answer, arrived_s)

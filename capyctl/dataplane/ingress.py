"""A host's ingress: the one way from its server to its engines, and to nothing else of theirs.

Under mutual TLS nobody but the server is listened to; on a private link that the host's document
trusts, whoever reaches the address is. Either way a request names a launch and its generation, and
goes no further unless they are open.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

import trio

from capyctl.dataplane.answer import Answer
from capyctl.dataplane.client import Client
from capyctl.dataplane.doors import Decision
from capyctl.dataplane.failures import Failure, failure, malformed
from capyctl.dataplane.heads import RequestHead
from capyctl.dataplane.ingress_launches import OpenLaunches, untaken
from capyctl.dataplane.ingress_passage import Passage
from capyctl.dataplane.listener import serve
from capyctl.dataplane.plane import Limits, Plane
from capyctl.dataplane.routes import EnginePath, RouteTable
from capyctl.dataplane.serving import Serving
from capyctl.dataplane.tls import ListenerTls
from capyctl.dataplane.tls_socket import TlsSocket, Wire
from capyctl.domain.ids import LaunchId

INGRESS_LIMITS = Limits(
    connection_idle_max_s=90.0,
    client_stall_max_s=60.0,
    comment_interval_s=None,
)
"""More patient than a server is with its clients: the server gives up first, never its host."""
GENERATION_DIGITS_MAX = 18


class IngressDoor:
    """A `doors.Door` for the server alone."""

    __slots__ = ("_launches", "_plane")

    is_public = False

    def __init__(self, plane: Plane, launches: OpenLaunches) -> None:
        self._plane = plane
        self._launches = launches

    def check_head(self, head: RequestHead) -> Decision:
        if self._plane.shutting_down:
            return untaken("stopping", "this machine's capyctl is stopping")
        path = head.engine_path
        if path is None:
            return failure("not_found", f"an ingress has no path {head.path[:200]!r}")
        if head.method != b"POST":
            return failure("method_not_allowed", f"{head.path} takes POST", allow="POST")
        if _named(head) is None:
            return malformed("a request to an ingress names one launch and its generation")
        return path

    def begin(
        self,
        serving: Serving,
        client: Client,
        head: RequestHead,
        path: EnginePath,
        answer: Answer,
        arrived_s: float,
    ) -> Failure | Passage:
        named = _named(head)
        assert named is not None, "a head was let in that names no launch"
        launch, generation = named
        found = self._launches.find(launch, generation)
        if isinstance(found, Failure):
            return found
        return Passage(serving, self._launches, client, head, answer, launch=launch, endpoint=found)


class Ingress:
    """Serves one address; made before it is known which launches there are.

    Attributes:
        launches: what is open; `contracts.hosts.Openings`.
    """

    def __init__(
        self,
        *,
        tls: ListenerTls | None,
        on_bug: Callable[[Exception], None],
        limits: Limits = INGRESS_LIMITS,
    ) -> None:
        """``tls`` None: plain HTTP, for a private link that the document trusts.

        Raises:
            ValueError: the context lets in peers without a certificate, or speaks below TLS 1.3.
        """
        if tls is not None:
            tls.checked_context()
        self.launches = OpenLaunches()
        self._tls = tls
        self._plane = Plane(routes=RouteTable, api_key=None, limits=limits, on_bug=on_bug)

    async def serve(
        self,
        where: socket.socket | tuple[str, int],
        *,
        task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """As `listener.serve`: until cancelled; the address is reported as started."""
        door = IngressDoor(self._plane, self.launches)
        await serve(where, self._plane, door=door, tls=self._tls, task_status=task_status)

    @property
    def active_count(self) -> int:
        """Requests that engines have."""
        return self._plane.active_count

    def close_all(self) -> int:
        """End every connection now, and with it what engines do for it. Returns how many.

        For a certificate of either side that is no good any more: new connections meet the
        context of now.
        """
        return self._plane.state.drop(lambda _: False)

    def close_unaccepted(self) -> int:
        """The same for connections whose peer would not be accepted now."""
        tls = self._tls
        if tls is None:
            return 0
        return self._plane.state.drop(lambda wire: _accepted(tls, wire))

    def begin_shutdown(self) -> None:
        """From now on no request is taken; the server is told so. What engines have goes on."""
        self._plane.begin_shutdown()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until engines have no request; False when some have after ``timeout_s``."""
        return await self._plane.wait_idle(timeout_s)

    def cut(self) -> int:
        """Break off what engines have. Returns how many requests."""
        return self._plane.cut()


def _accepted(tls: ListenerTls, wire: Wire) -> bool:
    try:
        return isinstance(wire, TlsSocket) and tls.accepts(wire.ssl)
    except ssl.SSLError:
        return False


def _named(head: RequestHead) -> tuple[LaunchId, int] | None:
    """The launch and the generation that a request is for; None when that is not clear."""
    launch = head.headers.get(b"x-capyctl-launch")
    generation = head.headers.get(b"x-capyctl-generation")
    if launch is None or generation is None or not launch.isalnum() or len(launch) > 64:
        return None
    if not generation.isdigit() or len(generation) > GENERATION_DIGITS_MAX:
        return None
    if not head.repeated.isdisjoint((b"x-capyctl-launch", b"x-capyctl-generation")):
        return None
    return LaunchId(launch.decode()), int(generation)

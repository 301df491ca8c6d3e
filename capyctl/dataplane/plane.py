"""What the data plane is given, and the few things that the rest of the daemon may tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from capyctl.dataplane.cors import Cors
from capyctl.dataplane.records import RequestRecord
from capyctl.dataplane.routes import RouteTable
from capyctl.dataplane.tls import HostTls
from capyctl.dataplane.tls_socket import Wire
from capyctl.domain.ids import DeploymentId, HostId, InstanceId
from capyctl.domain.units import KIB, MIB


@attrs.frozen(kw_only=True)
class Limits:
    """Bounds of one inference listener. Seconds and bytes; counts where nothing is said."""

    body_bytes_max: int = 64 * MIB
    head_bytes_max: int = 64 * KIB
    headers_max: int = 100
    head_timeout_s: float = 30.0
    """From a request's first byte to the end of its head."""
    body_pause_max_s: float = 30.0
    """Without a byte of a body that is arriving."""
    connection_idle_max_s: float = 75.0
    """Between two requests of a connection."""
    client_stall_max_s: float = 10.0
    """A client that takes nothing for so long is given up."""
    comment_interval_s: float | None = 15.0
    """Between keep-alive comments to a streaming client that waits; None sends none."""
    connect_timeout_s: float = 10.0
    engine_idle_max_s: float = 3.0
    """Unused connections to engines are closed then, before an engine does it."""
    engine_idle_count_max: int = 1024
    connections_max: int = 8192
    attempts_max: int = 4
    """Instances that are tried while none has accepted the request."""
    linger_s: float = 2.0
    """A client that still sends is listened to for so long after a final answer."""


class InProgress(Protocol):
    """A request between its acceptance and its last byte."""

    def begin_shutdown(self) -> None:
        """Answer it with 503 if it still waits."""

    def cut(self) -> None:
        """Break it off now, in the form that its answer has reached."""

    def lose_host(self, host: HostId) -> None:
        """Break it off if the ingress of this host has it."""


class Listening(Protocol):
    """One listener with its connections."""

    def close_host(self, host: HostId) -> None:
        """Close the idle connections to a host's ingress."""

    def drop(self, keeps: Callable[[Wire], bool]) -> int:
        """End every connection of a client that ``keeps`` does not hold. Returns how many."""


@attrs.define(eq=False)
class PlaneState:
    """What is going on, over all listeners of a plane."""

    shutting_down: bool = False
    requests: dict[InProgress, None] = attrs.field(factory=dict)
    listeners: dict[Listening, None] = attrs.field(factory=dict)
    became_idle: trio.Event | None = None
    """There while somebody waits for it."""

    def begin(self, request: InProgress) -> None:
        self.requests[request] = None

    def drop(self, keeps: Callable[[Wire], bool]) -> int:
        """As `Listening.drop`, for all."""
        return sum(listener.drop(keeps) for listener in list(self.listeners))

    def end(self, request: InProgress) -> None:
        del self.requests[request]
        if self.became_idle is not None and not self.requests:
            self.became_idle.set()
            self.became_idle = None


def _forget_record(_: RequestRecord) -> None:
    return


def _never_mind(_: DeploymentId) -> None:
    return


def _nobody_told(_: InstanceId, __: int, ___: str) -> None:
    return


def _raise(error: Exception) -> None:
    raise error


@attrs.frozen(kw_only=True, eq=False)
class Plane:
    """Configuration and needs of the inference listeners.

    All callables are called in the middle of a step: they note or tell, and return.
    """

    routes: Callable[[], RouteTable]
    """The table as it is now; asked once a request."""
    nudge: Callable[[DeploymentId], None] = _never_mind
    """Requests wait that the deployment's actor does not know of."""
    unproven: Callable[[InstanceId, int, str], None] = _nobody_told
    """A lease ended without proof that the engine stopped: instance, generation, why."""
    on_request: Callable[[RequestRecord], None] = _forget_record
    """Once for each answered, broken off or abandoned request."""
    on_bug: Callable[[Exception], None] = _raise
    """An error that is ours, in one connection; the others go on if it returns."""
    api_key: bytes | None = attrs.field(repr=False)
    """None lets everybody in."""
    limits: Limits = Limits()
    cors: Cors | None = None
    """None: browsers get nothing about other origins."""
    hosts_tls: HostTls | None = None
    """Towards the ingresses of other machines; None where there are none under TLS."""
    request_metrics: bool = False
    """Figures in every answer, asked for or not."""
    timing_header: bool = False
    state: PlaneState = attrs.field(factory=PlaneState, repr=False, init=False)

    @property
    def observes(self) -> bool:
        """Whether answers are looked into without being asked."""
        return self.request_metrics or self.timing_header

    @property
    def shutting_down(self) -> bool:
        return self.state.shutting_down

    @property
    def active_count(self) -> int:
        """Requests accepted and not yet ended, waiting ones included."""
        return len(self.state.requests)

    def begin_shutdown(self) -> None:
        """From now on answer 503 `shutting_down`, waiting requests included. Streams go on.

        Connections between two requests stay open: a request that is on its way meets the
        answer, not a closed connection.
        """
        state = self.state
        state.shutting_down = True
        for request in list(state.requests):
            request.begin_shutdown()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in progress; False when some are after ``timeout_s``."""
        state = self.state
        with trio.move_on_after(timeout_s):
            while state.requests:
                if state.became_idle is None:
                    state.became_idle = trio.Event()
                await state.became_idle.wait()
        return not state.requests

    def cut(self) -> int:
        """Break off every request in progress. Returns how many; `wait_idle` sees them end."""
        cut = list(self.state.requests)
        for request in cut:
            request.cut()
        return len(cut)

    def close_host(self, host: HostId, *, cut: bool) -> None:
        """Keep no connection to a host's ingress that is idle.

        ``cut``: its certificate is no good any more, so that requests which it has are broken
        off too. False: it is merely silent, and they go on as long as their connections do.
        """
        for listener in list(self.state.listeners):
            listener.close_host(host)
        if cut:
            for request in list(self.state.requests):
                request.lose_host(host)

"""One host of many in this process: it joins with a join file, dials, and serves its ingress."""

from __future__ import annotations

import random
import socket
import ssl
from pathlib import Path
from typing import Any, cast

import attrs
import trio

from benchmarks.hosts.machine import LightHost, machine_shape
from capyctl import __version__
from capyctl.config.server_document import split_url
from capyctl.daemon.clock import UlidIds
from capyctl.dataplane.ingress import Ingress
from capyctl.dataplane.listener import bind
from capyctl.dataplane.tls import ListenerTls
from capyctl.domain.checkpoints import CheckpointFacts
from capyctl.domain.devices import Profile
from capyctl.domain.hosts import HostPublication, IngressAddress
from capyctl.link.contexts import server_tls_name
from capyctl.link.dial import Dial, Dialler
from capyctl.link.identity import HostIdentity, HostTls
from capyctl.link.joining import join
from capyctl.link.peers import Tls, peer_server_id
from capyctl.link.service import HostService, open_host_service
from capyctl.link.websocket import websocket_dial
from capyctl.machines.link import CAPABILITIES
from capyctl.wire.enrolment import read_join_file

PROFILE = Profile(
    name="vllm", family="vllm", revision=1, executable=("/opt/vllm/bin/vllm",), version="0.32.0"
)


@attrs.define(eq=False, kw_only=True)
class Member:
    """A joined host. `run` serves it; `dial` and `leave` begin and end its link."""

    identity: HostIdentity
    host: LightHost
    tls: HostTls
    ingress: Ingress
    listening: socket.socket
    linked: trio.Event = attrs.field(factory=trio.Event)
    """Its session is agreed."""
    _service: HostService | None = None
    _scope: trio.CancelScope | None = None

    @classmethod
    async def joined(
        cls, folder: Path, document: str, facts: CheckpointFacts, engine_port: int, load_s: float
    ) -> Member:
        """Join as the command does; ``document``: the text of the join file."""
        file = read_join_file(document.encode())
        identity = await join(
            folder / file.host_name / "identity", file, host_name=file.host_name, recovers=False
        )
        tls = HostTls(identity)

        def accepts(session: ssl.SSLObject) -> bool:
            return peer_server_id(cast("Tls", session)) == identity.server_id

        return cls(
            identity=identity,
            host=LightHost(
                machine=machine_shape(identity.host),
                facts=facts,
                engine_port=engine_port,
                load_s=load_s,
            ),
            tls=tls,
            ingress=Ingress(
                tls=ListenerTls(context=lambda: tls.contexts.ingress, accepts=accepts),
                on_bug=_raise,
            ),
            listening=bind("127.0.0.1", 0),
        )

    @property
    def name(self) -> str:
        return self.identity.name

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve, until cancelled."""
        opening = open_host_service(
            self.host,
            strays=self.host,
            publication=self._publication(),
            openings=self.ingress.launches,
            epoch=UlidIds().ulid(),
            first_generation=random.getrandbits(48),
            log=_say_nothing,
        )
        async with opening as self._service, trio.open_nursery() as nursery:
            await nursery.start(self.ingress.serve, self.listening)
            task_status.started()

    async def dial(self) -> None:
        """Keep the link to the server, until `leave` or until cancelled."""
        assert self._service is not None
        dialler = Dialler(
            service=self._service,
            dial=self._dial(),
            version=__version__,
            chance=random.random,
            log=_say_nothing,
            changed=self._changed,
        )
        with trio.CancelScope() as self._scope:
            await dialler.run()

    def leave(self) -> None:
        """End the link; engines and calls go on."""
        assert self._scope is not None
        self._scope.cancel()
        self._changed("left")

    def _dial(self) -> Dial:
        address, port = split_url(self.identity.control_address)
        name = server_tls_name(self.identity.server_id)
        return websocket_dial(address, port, lambda: self.tls.contexts.link, server_name=name)

    def _changed(self, why: str | None) -> None:
        if why is None:
            self.linked.set()
        else:
            self.linked = trio.Event()

    def _publication(self) -> HostPublication:
        address, port = self.listening.getsockname()
        return HostPublication(
            shape=self.host.machine,
            profiles=(PROFILE,),
            version=__version__,
            capabilities=tuple(sorted(CAPABILITIES)),
            ingress=IngressAddress(host=address, port=port),
            models_root="/models",
        )


def _say_nothing(event: str, **fields: Any) -> None:
    pass


def _raise(error: Exception) -> None:
    raise error

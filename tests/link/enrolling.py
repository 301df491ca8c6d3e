"""A server that machines can join: authority, real store, bootstrap listener on loopback."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import attrs
import trio

from capyctl.config.owner_files import write_owner_file
from capyctl.contracts.store import Change
from capyctl.domain.hosts import HostRecord, HostState, Invitation
from capyctl.domain.ids import HostId
from capyctl.link.authority import Authority
from capyctl.link.bootstrap import Bootstrap
from capyctl.link.enrolment import Enrolment
from capyctl.link.identity import HostIdentity
from capyctl.link.invitations import ServerAddresses
from capyctl.link.joining import join, open_join_file
from capyctl.machines.host_changes import enrolled
from capyctl.messages.hosts import EnrolHost, RenewHost
from capyctl.store.sqlite_store import SqliteStore
from capyctl.wire.enrolment import Redeemed, Redemption
from tests.link.trust import authority, wall_ms
from tests.store.making import IDS, opened

MINUTE_MS = 60_000


class Clock:
    """The server's: real, and as far off as the test wants it."""

    def __init__(self) -> None:
        self.off_ms = 0

    def wall_ms(self) -> int:
        return wall_ms() + self.off_ms

    def monotonic_s(self) -> float:
        return trio.current_time()


class Killed(Exception):
    """The server died here."""


@attrs.define(eq=False)
class Owner:
    """Stands for the hosts actor: the same decisions, the same store."""

    store: SqliteStore
    hosts: dict[HostId, HostRecord] = attrs.field(factory=dict)
    invitations: dict[str, Invitation] = attrs.field(factory=dict)
    killed: str | None = None
    """``before`` or ``after`` its next commit."""

    def on_committed(self, batch) -> None:
        for committed in batch:
            for record in committed.change.puts:
                if isinstance(record, HostRecord):
                    self.hosts[record.id] = record
                if isinstance(record, Invitation):
                    self.invitations[record.id] = record

    async def ask(self, message: EnrolHost | RenewHost) -> HostRecord:
        if self.killed == "before":
            raise Killed
        if isinstance(message, EnrolHost):
            invitation = self.invitations.get(message.invitation)
            decision = enrolled(self.hosts, invitation, message, now_ms=0)
            puts, record = decision.puts, decision.record
        else:
            record = attrs.evolve(self.hosts[message.host], certificates=message.certificates)
            puts = (record, *message.issued)
        await self.store.commit(Change(puts=puts))
        if self.killed == "after":
            raise Killed
        return record


@attrs.define(eq=False)
class Server:
    """One run of a server; `serving` again for the next one."""

    folder: Path
    authority: Authority
    store: SqliteStore
    owner: Owner
    enrolment: Enrolment
    clock: Clock
    log: list[str]
    """Why machines were refused."""
    heard: list[Redemption]
    """What reached us."""
    tamper: Callable[[Redeemed], Redeemed] = lambda answer: answer
    """What becomes of an answer."""

    async def invite(
        self, name: str = "gpu-1", *, recover: HostId | None = None, minutes: int = 15
    ) -> Path:
        """The path of a join file."""
        invitation, text = self.enrolment.invitation(
            name, recover=recover, expires_in_ms=minutes * MINUTE_MS
        )
        await self.store.commit(Change(puts=(invitation,)))
        path = self.folder / f"{invitation.id}.json"
        write_owner_file(path, text)
        return path

    async def revoke(self, host: HostId) -> None:
        record = attrs.evolve(self.owner.hosts[host], state=HostState.REVOKED, revoked_at_ms=1)
        await self.store.commit(Change(puts=(record,)))


def own_authority(folder: Path) -> Authority:
    folder.mkdir(mode=0o700, exist_ok=True)
    return authority(folder)


@contextlib.asynccontextmanager
async def serving(folder: Path, *, port: int = 0) -> AsyncIterator[Server]:
    """A server with its state in ``folder``; a second time it is the same one, started again."""
    ours = own_authority(folder)
    clock, log, heard = Clock(), [], []
    async with opened(folder) as store, trio.open_nursery() as nursery:
        stored = await store.load()
        owner = Owner(store)
        owner.hosts.update({one.id: one for one in stored.hosts})
        owner.invitations.update({one.id: one for one in stored.invitations})
        store.listen(owner.on_committed)
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        bound = listeners[0].socket.getsockname()[1]
        enrolment = Enrolment(
            authority=ours,
            addresses=ServerAddresses(
                bootstrap=f"https://127.0.0.1:{bound}", control="https://127.0.0.1:7445"
            ),
            book=owner,
            ask_owner=owner.ask,
            clock=clock,
            ids=IDS,
            issued=stored.certificates,
            log=log.append,
        )
        store.listen(enrolment.on_committed)

        async def redeem(asked):
            heard.append(asked)
            try:
                return server.tamper(await enrolment.redeem(asked))
            except Killed:
                raise trio.BrokenResourceError from None

        server = Server(
            folder=folder,
            authority=ours,
            store=store,
            owner=owner,
            enrolment=enrolment,
            clock=clock,
            log=log,
            heard=heard,
        )
        bootstrap = Bootstrap(ours.contexts().bootstrap, redeem, log=lambda _, why: log.append(why))
        nursery.start_soon(bootstrap.serve, listeners)
        yield server
        nursery.cancel_scope.cancel()


async def joined(
    machine: Path, file: Path, name: str = "gpu-1", *, recovers: bool = False
) -> HostIdentity:
    """`capyctl join host` on the machine whose state is in ``machine``."""
    return await join(machine / "identity", open_join_file(file), host_name=name, recovers=recovers)


def changed(file: Path, **fields) -> Path:
    """The join file with other values in it."""
    write_owner_file(file, json.dumps({**json.loads(file.read_text()), **fields}))
    return file

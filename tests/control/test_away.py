"""An instance's actor whose host falls silent, is lost, and comes back."""

from __future__ import annotations

import pytest

from capyctl.control.sessions import SessionState
from capyctl.messages.deployment import ActionKind as A
from capyctl.messages.instance import HostBack, HostLost, HostSuspended
from capyctl.simulation.machine import HOST
from tests.control.worlds import place

pytestmark = pytest.mark.slow


class Link:
    """As the hosts actor: what is so first, then the message."""

    def __init__(self, session, instance) -> None:
        self.session = session
        self.instance = instance

    def _tell(self, message) -> None:
        self.session.world.tell(self.session.directory.instance_refs[self.instance], message)

    def _be(self, state: SessionState) -> None:
        world = self.session.world
        world.sessions.move(HOST, state, world.clock.monotonic_s())

    def silent(self) -> None:
        self._be(SessionState.SUSPENDED)
        self._tell(HostSuspended(host=HOST))

    def lost(self) -> None:
        self._be(SessionState.LOST)
        self._tell(HostLost(host=HOST, why="box is offline"))

    def back(self, *, fresh: bool = True) -> None:
        self._be(SessionState.ONLINE)
        self._tell(HostBack(host=HOST, name="box", fresh=fresh))


async def ready(here, session):
    id = await here.made(session)
    await here.started(session, id)
    one = here.one(id)
    return id, Link(session, one.id), session.directory.gate(one.id)


async def test_a_silent_host_keeps_requests_out_until_it_is_heard(autojump_clock):
    async with place() as here, here.daemon() as session:
        id, link, gate = await ready(here, session)

        link.silent()
        await here.until(lambda: gate.closed_for == ("host_session",))
        assert here.state(id) == "ready"
        link.back(fresh=False)

        await here.until(lambda: gate.is_open)
        assert here.state(id) == "ready"


async def test_a_lost_host_keeps_its_charge_and_its_engine(autojump_clock):
    async with place() as here, here.daemon() as session:
        id, link, gate = await ready(here, session)
        launch = here.one(id).launch

        link.lost()
        await here.until(lambda: here.state(id) == "uncertain")
        assert not gate.is_open
        assert here.one(id).id in session.control.books.ledger.entries
        link.back()

        await here.until(lambda: here.state(id) == "ready")
        await here.until(lambda: gate.is_open)
        assert here.one(id).launch.launch == launch.launch
        assert [e.record.launch for e in here.host.alive] == [launch.launch]


async def test_a_stop_waits_for_the_host_and_is_done_then(autojump_clock):
    async with place() as here, here.daemon() as session:
        id, link, _ = await ready(here, session)
        link.lost()
        await here.until(lambda: here.state(id) == "uncertain")

        await session.desk.take(here.act(id, A.STOP))
        await here.until(lambda: here.one(id).operation is not None)
        assert here.host.alive
        assert here.one(id).operation.open
        link.back()

        await here.until(lambda: here.state(id) == "stopped")
        assert not here.host.alive
        assert not session.control.books.ledger.entries


async def test_a_start_that_is_lost_goes_on_when_its_host_is_back(autojump_clock):
    async with place() as here, here.daemon() as session:
        id = await here.made(session)
        await session.desk.take(here.act(id, A.START))
        await here.until(lambda: here.state(id) == "starting")
        link = Link(session, here.one(id).id)

        link.lost()
        await here.until(lambda: here.state(id) == "uncertain")
        link.back()

        await here.until(lambda: here.state(id) == "ready")
        assert len(here.host.alive) == 1


async def test_what_is_granted_as_its_host_goes_is_lost_with_it(autojump_clock):
    """The grant was on its way when the loss was told, so nobody told the instance."""
    async with place() as here, here.daemon() as session:
        id = await here.made(session)
        world = session.world
        world.sessions.move(HOST, SessionState.LOST, world.clock.monotonic_s())

        await session.desk.take(here.act(id, A.START))

        await here.until(lambda: here.state(id) == "uncertain")
        assert "host is offline" in str(here.one(id).failure)
        Link(session, here.one(id).id).back()
        await here.until(lambda: here.state(id) == "ready")


async def test_a_request_is_told_that_its_machine_is_away(autojump_clock):
    async with place() as here, here.daemon() as session:
        id, link, _ = await ready(here, session)
        link.lost()
        await here.until(lambda: here.state(id) == "uncertain")

        answer = session.directory.admission(id).refusal

        assert answer.code == "unavailable"
        assert "box is offline" in answer.message

"""Releases beside each other: what a host is still used for that comes back as another one."""

from __future__ import annotations

import pytest

from capyctl.control.sessions import SessionState
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import Compatibility
from capyctl.domain.operations import OperationState
from capyctl.messages.deployment import ActionKind
from capyctl.simulation import host_process
from tests.control.fleets import fleet

pytestmark = pytest.mark.slow
HOST = "gpu-a"


async def comes_back_as(here, session, version, monkeypatch) -> None:
    """Its daemon is another release; its engines are the same."""
    monkeypatch.setattr(host_process, "VERSION", version)
    here.at(HOST).kill(reboot=False)

    def is_it() -> bool:
        known = session.world.directory.hosts[here.at(HOST).id].publication
        return known.version == version and here.session_of(session, HOST) == "online"

    await here.until(is_it)


async def refusal(session, sent) -> Refused:
    with pytest.raises(Refused) as refused:
        await session.desk.take(sent)
    return refused.value


async def test_an_old_release_serves_and_stops_and_nothing_begins_there(
    autojump_clock, monkeypatch
):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        ready = await here.made(session, "ready", gib=4, allowed_hosts=(HOST,))
        parked = await here.made(session, "parked", gib=4, allowed_hosts=(HOST,))
        fresh = await here.made(session, "fresh", gib=4, allowed_hosts=(HOST,))
        anywhere = await here.measured(session, "anywhere", gib=4)
        await here.started(session, ready)
        await here.started(session, parked)
        await session.desk.take(here.act(parked, ActionKind.PARK))
        await here.until(lambda: here.state(parked) == "parked")
        launch = here.one(ready).launch_id

        await comes_back_as(here, session, "next", monkeypatch)
        await here.until(lambda: here.state(ready) == "ready")

        known = session.world.sessions.of(here.at(HOST).id)
        assert known.compatibility is Compatibility.UPGRADE_REQUIRED
        assert session.directory.gate(here.one(ready).id).is_open
        for id in (fresh, parked):
            refused = await refusal(session, here.act(id, ActionKind.START))
            assert refused.code == "host_ineligible"
            assert "upgrade_required" in refused.message
        before = set(here.disk.operations)
        await session.desk.take(here.act(ready, ActionKind.PARK))
        await here.until(lambda: not any(o.open for o in here.disk.operations.values()))
        (park,) = [o for id, o in here.disk.operations.items() if id not in before]
        assert park.state is OperationState.FAILED
        assert "upgrade_required" in (park.reason or "")
        assert here.state(ready) == "ready"
        assert here.one(ready).launch_id == launch
        await here.started(session, anywhere)
        assert here.where(anywhere) != HOST
        for id in (ready, parked):
            await session.desk.take(here.act(id, ActionKind.STOP))
        await here.until(lambda: here.state(ready) == here.state(parked) == "stopped")
        assert here.at(HOST).machine.alive == []


async def test_the_release_before_is_used_as_ever(autojump_clock, monkeypatch):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.made(session, gib=4, allowed_hosts=(HOST,))

        await comes_back_as(here, session, "0.0.9", monkeypatch)

        known = session.world.sessions.of(here.at(HOST).id)
        assert known.compatibility is Compatibility.UPGRADE_RECOMMENDED
        await here.started(session, id)
        assert here.where(id) == HOST


async def test_a_newer_release_is_kept_out_and_its_engines_stay_charged(
    autojump_clock, monkeypatch
):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.made(session, gib=4, allowed_hosts=(HOST,))
        await here.started(session, id)
        launch = here.one(id).launch_id

        monkeypatch.setattr(host_process, "VERSION", "0.2.0")
        here.at(HOST).kill(reboot=False)
        await here.is_lost(session, HOST)
        await here.until(lambda: here.state(id) == "uncertain")
        assert here.one(id).id in session.control.books.ledger.entries
        assert [e.record.launch for e in here.at(HOST).machine.alive] == [launch]
        assert session.world.sessions.state(here.at(HOST).id) is SessionState.LOST

        await comes_back_as(here, session, "0.1.4", monkeypatch)
        await here.until(lambda: here.state(id) == "ready")

    assert here.one(id).launch_id == launch, "proven, not started again"

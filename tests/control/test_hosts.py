"""Machines of a server: they join, are drained, fall silent, are revoked, and come back."""

from __future__ import annotations

import contextlib
import json

import attrs
import pytest
import trio

from actors import ActorGone
from capyctl.control.hosts import HostsActor
from capyctl.control.instance import InstanceActor
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import HostState
from capyctl.gates.gate import HOST_SESSION
from capyctl.messages.deployment import ActionKind
from capyctl.messages.instance import HostBack
from capyctl.simulation.fleet import SILENCE
from capyctl.simulation.sim_store import InjectedFailure
from tests.control.fleets import fleet

pytestmark = pytest.mark.slow
"""Each runs the real link between a server and three hosts."""


def kinds(here, *, about="host_"):
    return [kind for kind in here.kinds() if kind.startswith(about)]


# -- joining and files -----------------------------------------------------------------------


async def test_every_host_measures_and_is_a_place(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session)

    found = here.disk.deployments[id]
    assert {c.host for c in found.resolved.candidates} == set(here.fleet.hosts)
    assert [f.state.value for f in found.checkpoint.hosts] == ["recorded"] * 3
    assert kinds(here).count("host_online") == 3


async def test_a_host_that_joins_later_is_measured_and_used(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.join(session, "gpu-a")
        here.fleet.start()
        await here.until(lambda: here.session_of(session, "gpu-a") == "online")
        id = await here.made(session, gib=13, instances=2)
        assert {c.host for c in here.disk.deployments[id].resolved.candidates} == {
            here.at("gpu-a").id
        }

        await here.all_here(session)
        await here.until(lambda: len(here.disk.deployments[id].checkpoint.hosts) == 3)
        await here.until(lambda: len(here.disk.deployments[id].resolved.candidates) >= 3)


async def test_only_named_hosts_are_places(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session, allowed_hosts=("gpu-b",))
        await here.started(session, id)

    assert here.where(id) == "gpu-b"


async def test_a_host_with_other_files_is_no_place(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        here.at("gpu-c").machine.differs = True
        await here.all_here(session)
        id = await here.measured(session)

    found = here.disk.deployments[id].checkpoint
    states = {here.fleet.hosts[f.host].name: f.state.value for f in found.hosts}
    assert sorted(states.values()).count("mismatch") in (1, 2), "held against the first"
    assert found.state.value == "recorded"


# -- draining --------------------------------------------------------------------------------


async def test_a_drained_host_is_left_and_its_models_go_on_elsewhere(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session)
        await here.started(session, id)
        left = here.where(id)

        receipt = json.loads(await here.act_on_host(session, "drain", left))

        assert (receipt["action"], receipt["host_name"], receipt["joined"]) == (
            "drain",
            left,
            False,
        )
        assert here.record(left).draining, "durable before it is answered"
        await here.until(lambda: here.state(id) == "ready" and here.where(id) != left)
        assert not here.at(left).machine.alive
        assert here.disk.deployments[id].moves == ()
        open_ones = [o for o in here.disk.operations.values() if o.open]
        assert open_ones == []


async def test_a_parked_model_leaves_and_stays_down(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session)
        await here.started(session, id)
        left = here.where(id)
        await session.desk.take(here.act(id, ActionKind.PARK))
        await here.until(lambda: here.state(id) == "parked")

        await here.act_on_host(session, "drain", left)

        await here.until(lambda: here.state(id) == "stopped")
        assert await session.requests.one(id) == "served"
        assert here.where(id) != left


async def test_the_same_drain_is_answered_the_same_and_another_one_joins(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        key = here.key("hosts")
        first = await here.act_on_host(session, "drain", "gpu-a", key)

        again = await here.act_on_host(session, "drain", "gpu-a", key)
        other = await here.act_on_host(session, "drain", "gpu-a")
        reused = attrs.evolve(key, fingerprint="another")
        with pytest.raises(Refused) as refused:
            await here.act_on_host(session, "revoke", "gpu-a", reused)

    assert again == first
    assert json.loads(other)["joined"] is True
    assert refused.value.code == "idempotency_conflict"
    assert kinds(here).count("host_draining") == 1


async def test_nothing_begins_on_a_drained_host_until_it_is_undrained(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session, allowed_hosts=("gpu-a",))
        await here.act_on_host(session, "drain", "gpu-a")
        await trio.sleep(1)

        with pytest.raises(Refused) as refused:
            await session.desk.take(here.act(id, ActionKind.START))
        assert refused.value.code == "host_ineligible"
        assert "gpu-a: draining" in refused.value.message

        await here.act_on_host(session, "undrain", "gpu-a")
        await here.started(session, id)
        assert here.where(id) == "gpu-a"


async def test_a_request_that_no_machine_may_serve_is_answered_while_a_start_waits(
    autojump_clock,
):
    """The restart of what a drain stopped waits for a machine; a client would wait for nothing."""
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session, allowed_hosts=("gpu-a", "gpu-b"))
        await here.started(session, id)
        drained = here.where(id)
        other = "gpu-b" if drained == "gpu-a" else "gpu-a"
        here.at(other).partitioned = True
        here.at(other).damage("cut")
        await here.is_lost(session, other)
        await here.act_on_host(session, "drain", drained)
        await here.until(lambda: here.state(id) == "queued")
        began_s = trio.current_time()

        assert await session.requests.one(id) == "unavailable"
        assert await session.requests.one(id) == "unavailable"
        assert trio.current_time() - began_s < 5
        assert here.state(id) == "queued"

        await here.act_on_host(session, "undrain", drained)
        await here.until(lambda: here.state(id) == "ready")
        assert await session.requests.one(id) == "served"


async def test_a_drain_of_a_host_that_is_offline_waits_for_it(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session)
        await here.started(session, id)
        left = here.where(id)
        here.at(left).partitioned = True
        here.at(left).damage("cut")
        await here.is_lost(session, left)

        await here.act_on_host(session, "drain", left)
        await trio.sleep(300)
        assert here.state(id) == "uncertain"
        assert here.at(left).machine.alive, "nothing is ended without its host"

        here.at(left).partitioned = False
        await here.until(lambda: here.state(id) == "ready" and here.where(id) != left)
        assert not here.at(left).machine.alive


async def test_a_drain_goes_on_with_the_next_server(autojump_clock):
    async with fleet() as here:
        async with here.daemon() as session:
            await here.all_here(session)
            id = await here.measured(session)
            await here.started(session, id)
            left = here.where(id)
            await here.act_on_host(session, "drain", left)
            session.end()
        async with here.daemon() as session:
            await here.all_here(session)
            await here.until(lambda: here.state(id) == "ready" and here.where(id) != left)


# -- silence ---------------------------------------------------------------------------------


async def test_a_short_silence_closes_the_gate_and_nothing_else(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session)
        await here.started(session, id)
        name, launch = here.where(id), here.one(id).launch_id
        here.at(name).partitioned = True
        here.at(name).damage("cut")

        gate = session.directory.gate(here.one(id).id)
        await here.until(lambda: HOST_SESSION in gate.closed_for, SILENCE.lost_after_s)
        assert here.state(id) == "ready"
        here.at(name).partitioned = False
        await here.until(lambda: gate.is_open)

    assert here.one(id).launch_id == launch
    assert "reconcile_started" not in here.kinds()


async def test_a_host_that_is_lost_stays_charged_and_its_engine_is_proven_again(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session)
        await here.started(session, id)
        name, launch = here.where(id), here.one(id).launch_id
        here.at(name).partitioned = True
        here.at(name).damage("cut")

        await here.until(lambda: here.state(id) == "uncertain")
        assert here.one(id).id in session.control.books.ledger.entries
        assert f"{name} is offline" in here.one(id).failure.detail
        assert await session.requests.one(id) == "unavailable"

        here.at(name).partitioned = False
        await here.until(lambda: here.state(id) == "ready")
        assert await session.requests.one(id) == "served"

    assert here.one(id).launch_id == launch, "it was never started again"
    assert kinds(here)[-3:] == ["host_suspended", "host_lost", "host_online"]


async def test_other_hosts_serve_on_while_one_is_lost(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session, gib=13, instances=3)
        await here.started(session, id)
        assert {here.where(id, index) for index in range(3)} == {"gpu-a", "gpu-b", "gpu-c"}
        here.at("gpu-a").partitioned = True
        here.at("gpu-a").damage("cut")
        await here.is_lost(session, "gpu-a")

        outcomes = [await session.requests.one(id) for _ in range(6)]

    assert outcomes == ["served"] * 6


async def test_a_killed_host_leaves_its_engines_and_has_them_proven(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session)
        await here.started(session, id)
        launch = here.one(id).launch_id

        here.at(here.where(id)).kill(reboot=False)

        await here.until(lambda: "reconciled_committed" in here.kinds())
        assert here.state(id) == "ready"
        assert await session.requests.one(id) == "served"

    assert here.one(id).launch_id == launch


async def test_a_host_that_was_rebooted_has_lost_its_engines(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session)
        await here.started(session, id)
        launch = here.one(id).launch_id

        here.at(here.where(id)).kill(reboot=True)

        await here.until(lambda: here.state(id) == "failed")
        assert await session.requests.one(id) == "served"

    assert here.one(id).launch_id != launch


async def test_a_server_that_begins_anew_finds_its_engines_again(autojump_clock):
    async with fleet() as here:
        async with here.daemon() as session:
            await here.all_here(session)
            id = await here.measured(session)
            await here.started(session, id)
            name, launch = here.where(id), here.one(id).launch_id
            here.at(name).partitioned = True
            session.end()
        async with here.daemon() as session:
            await here.until(lambda: here.state(id) == "uncertain")
            entries = session.control.books.ledger.entries
            assert here.one(id).id in entries, "charged before its host is back"
            here.at(name).partitioned = False
            await here.until(lambda: here.state(id) == "ready")

    assert here.one(id).launch_id == launch


# -- revoking --------------------------------------------------------------------------------


async def test_a_revoked_host_is_out_at_once_and_its_engines_stay_charged(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session)
        await here.started(session, id)
        name, launch = here.where(id), here.one(id).launch_id

        await here.act_on_host(session, "revoke", name)

        gate = session.directory.gate(here.one(id).id)
        await here.until(lambda: not gate.is_open, within_s=1.0)
        await here.until(lambda: here.state(id) == "uncertain", within_s=1.0)
        await trio.sleep(300)
        assert [e.record.launch for e in here.at(name).machine.alive] == [launch]
        assert here.one(id).id in session.control.books.ledger.entries
        assert here.at(name).ingress is None, "it was told, and has ended"

        await here.join(session, name, recovers=True)
        await here.until(lambda: here.state(id) == "ready")
        assert here.record(name).state is HostState.ENROLLED

    assert here.one(id).launch_id == launch, "proven, not started again"
    assert "host_recovered" in here.kinds()


async def test_a_host_that_is_not_revoked_cannot_be_recovered(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)

        with pytest.raises(Refused) as refused:
            await here.join(session, "gpu-a", recovers=True)

    assert refused.value.code == "host_not_revoked"


# -- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["drain", "revoke"])
async def test_what_was_stored_is_told_by_the_next_actor(action, autojump_clock, monkeypatch):
    """The actor fails right after its commit: nobody was told, nobody was answered."""
    failures = []
    told = HostsActor._tell

    def fails_once(self, host):
        record = self._directory.hosts[host]
        changed = record.draining or record.state is HostState.REVOKED
        if changed and not failures:
            failures.append(host)
            raise InjectedFailure("after the commit")
        told(self, host)

    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session)
        await here.started(session, id)
        name = here.where(id)
        key = here.key("hosts")
        monkeypatch.setattr(HostsActor, "_tell", fails_once)

        first = None
        with contextlib.suppress(ActorGone):
            first = await here.act_on_host(session, action, name, key)
        again = await here.act_on_host(session, action, name, key)

        assert failures
        assert first in (None, again)
        if action == "drain":
            await here.until(lambda: here.state(id) == "ready" and here.where(id) != name)
        else:
            await here.until(lambda: here.state(id) == "uncertain")
            await here.until(lambda: here.at(name).ingress is None)


async def test_an_instance_that_fails_as_its_host_comes_back_is_proven_all_the_same(
    autojump_clock, monkeypatch
):
    failures = []
    handle = InstanceActor.handle

    async def fails_once(self, message):
        if isinstance(message, HostBack) and message.fresh and not failures:
            failures.append(message)
            raise InjectedFailure("before it is taken in")
        await handle(self, message)

    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session)
        await here.started(session, id)
        monkeypatch.setattr(InstanceActor, "handle", fails_once)

        here.at(here.where(id)).kill(reboot=False)

        await here.until(lambda: "reconciled_committed" in here.kinds())
        assert failures
        assert here.state(id) == "ready"
        assert await session.requests.one(id) == "served"


async def test_engines_that_a_restored_server_does_not_know_are_ended_when_it_is_met(
    autojump_clock,
):
    async with fleet() as here:
        async with here.daemon() as session:
            await here.all_here(session)
            id = await here.measured(session)
            before = attrs.evolve(
                here.disk,
                instances=dict(here.disk.instances),
                operations=dict(here.disk.operations),
            )
            await here.started(session, id)
            assert [m for m in here.fleet.machines if m.alive]
            session.end()
        here.disk.instances, here.disk.operations = before.instances, before.operations
        async with here.daemon():
            await here.until(lambda: not any(m.alive for m in here.fleet.machines), 60.0)

    assert here.state(id) == "stopped"

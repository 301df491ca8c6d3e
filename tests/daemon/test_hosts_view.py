"""GET hosts over a control plane that runs: a fleet over the real link, in virtual time."""

from __future__ import annotations

import json

import attrs
import pytest

from capyctl import __version__
from capyctl.daemon.hosts_view import HostsView, OwnHost
from capyctl.domain.errors import Refused
from capyctl.simulation.machine import HOST
from capyctl.wire.openapi_hosts import HostAnswer, Hosts
from tests.control.fleets import fleet
from tests.control.worlds import place
from tests.machines.machines_of import publication

pytestmark = pytest.mark.slow


def view_of(session, **more) -> HostsView:
    return HostsView(world=session.world, books=session.control.books, **more)


async def test_every_machine_is_shown_by_name_with_what_is_charged_and_seen(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session, gib=13)
        await here.started(session, id)
        view = view_of(session)
        name = here.where(id)
        await here.until(lambda: view.one(name)["sample_age_ms"] is not None)

        shown = view.every()

    Hosts.model_validate(json.loads(json.dumps(shown)), strict=True)
    assert shown["server_version"] == __version__
    assert [host["name"] for host in shown["hosts"]] == ["gpu-a", "gpu-b", "gpu-c"]
    mine = next(host for host in shown["hosts"] if host["name"] == name)
    assert [one["observed_state"] for one in mine["instances"]] == ["ready"]
    charged = {one["domain"]: int(one["charged_bytes"]) for one in mine["memory"]}
    assert charged[here.one(id).held.candidate.gpu] == 13 << 30
    assert {host["state"] for host in shown["hosts"]} == {"online"}


async def test_one_machine_is_found_by_id_or_name(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        view = view_of(session)

        by_name, by_id = view.one("gpu-b"), view.one(here.at("gpu-b").id)

        with pytest.raises(Refused) as refused:
            view.one("gpu-x")

    HostAnswer.model_validate(json.loads(json.dumps(by_name)), strict=True)
    assert by_name["host_id"] == by_id["host_id"] == here.at("gpu-b").id
    assert refused.value.code == "not_found"


async def test_one_that_is_lost_is_offline_and_keeps_its_instances(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        id = await here.measured(session)
        await here.started(session, id)
        name = here.where(id)
        here.at(name).partitioned = True
        here.at(name).damage("cut")
        await here.is_lost(session, name)
        await here.until(lambda: here.state(id) == "uncertain")

        entry = view_of(session).one(name)

    assert (entry["state"], entry["ineligible_reason"]) == ("offline", "offline")
    assert [one["observed_state"] for one in entry["instances"]] == ["uncertain"]
    assert "stays charged" in entry["warnings"][0]


@pytest.mark.parametrize(
    ("version", "found"),
    [(__version__, "supported"), ("99.0.0", "server_upgrade_required"), ("x", "upgrade_required")],
)
async def test_the_release_of_one_that_is_away_is_judged_by_what_it_had(
    autojump_clock, version, found
):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        here.at("gpu-a").partitioned = True
        here.at("gpu-a").damage("cut")
        await here.is_lost(session, "gpu-a")
        hosts = session.world.directory.hosts
        id = here.at("gpu-a").id
        hosts[id] = attrs.evolve(hosts[id], publication=publication(id, version=version))

        entry = view_of(session).one("gpu-a")

    assert (entry["binary_version"], entry["compatibility"]) == (version, found)


async def test_one_that_was_revoked_says_so(autojump_clock):
    async with fleet() as here, here.daemon() as session:
        await here.all_here(session)
        await here.act_on_host(session, "revoke", "gpu-c")

        entry = view_of(session).one("gpu-c")

    assert (entry["state"], entry["eligible"]) == ("revoked", False)
    assert int(entry["revoked_at_ms"]) > 0


async def test_a_standalone_daemon_shows_its_own_machine(autojump_clock):
    async with place() as here, here.daemon() as session:
        id = await here.made(session)
        await here.started(session, id)
        shape = here.host.machine
        own = OwnHost(id=HOST, publication=lambda: publication(HOST, shape=shape))
        view = view_of(session, own=own)
        await here.until(lambda: view.one(HOST)["sample_age_ms"] is not None)

        (entry,) = view.every()["hosts"]

    assert (entry["name"], entry["state"], entry["eligible"]) == (HOST, "online", True)
    assert [one["observed_state"] for one in entry["instances"]] == ["ready"]

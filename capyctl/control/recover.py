"""The control plane from what the store holds: one way to begin, fresh or after a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs

from actors import ChildSpec, Observer, Ref, Supervisor, System, open_system
from capyctl.contracts.host import Host
from capyctl.contracts.store import Change
from capyctl.control.books import Books
from capyctl.control.catalogue import CatalogueActor, CatalogueNeeds
from capyctl.control.hosts import HostsNeeds, hosts_maker
from capyctl.control.model_files import Resolver
from capyctl.control.own_host import own_host_maker
from capyctl.control.placement import PlacementActor
from capyctl.control.surroundings import World
from capyctl.domain.events import NewEvent
from capyctl.domain.hosts import HostPublication
from capyctl.domain.ids import HostId
from capyctl.machines.idling import IdlePolicy
from capyctl.machines.switch import WINDOW_S


@attrs.frozen(kw_only=True)
class ControlPlane:
    """The running actors that others talk to."""

    system: System
    catalogue: Ref[Any]
    placement: Ref[Any]
    hosts: Ref[Any]
    """The hosts actor, or that of the own machine in a standalone daemon."""
    books: Books
    """What placement keeps. Only its actor changes it."""


@attrs.frozen(kw_only=True)
class Reach:
    """How hosts that are not this machine are met and left."""

    open_host: Callable[[HostId, HostPublication], Host]
    """Put the way to a host into `World.hosts`, once, and return it; what it publishes may be
    another thing by the next call."""
    close_session: Callable[[HostId], None]
    """End a host's session at once, for good."""


@asynccontextmanager
async def open_control(
    world: World,
    *,
    resolve: Resolver,
    own_host: HostId | None = None,
    reach: Reach | None = None,
    observer: Observer | None = None,
    window_s: float = WINDOW_S,
    idle: IdlePolicy | None = None,
) -> AsyncIterator[ControlPlane]:
    """Run the control plane over ``world`` until the block is left. Engines stay.

    Either ``own_host``, the one machine of a standalone daemon, or ``reach``, the way to hosts that
    come and go: those on record are in ``world.hosts`` before anything else begins.

    Floors, lowest first: placement, hosts, instances, deployments, catalogue. Leaving stops
    the actors from the top; what runs on the hosts is left alone.
    """
    assert (own_host is None) is (reach is not None), "one machine, or hosts that come and go"
    await _tell_session(world)
    if reach is not None:
        _expect_hosts(world, reach)
    shapes = tuple(host.shape() for host in world.hosts.values())
    books = Books.from_directory(shapes, world.directory)
    made = 0

    def make_placement() -> PlacementActor:
        nonlocal made
        made += 1
        return PlacementActor(
            world,
            books,
            instance_ref=world.directory.instance_refs.get,
            first=made == 1,
            window_s=window_s,
        )

    instances = Supervisor("instances")
    deployments = Supervisor("deployments")
    async with open_system(observer=observer, name="control") as system:
        placement = await system.start_child(ChildSpec(name="placement", make=make_placement))
        hosts = await _start_hosts(system, world, placement, own_host, reach)
        await system.start_child(instances.as_child())
        await system.start_child(deployments.as_child())
        needs = CatalogueNeeds(
            world=world,
            placement=placement,
            deployments=deployments,
            instances=instances,
            resolve=resolve,
            own_host=own_host,
            idle=IdlePolicy() if idle is None else idle,
        )
        catalogue = await system.start_child(
            ChildSpec(name="catalogue", make=lambda: CatalogueActor(needs))
        )
        yield ControlPlane(
            system=system,
            catalogue=catalogue,
            placement=placement,
            hosts=hosts,
            books=books,
        )


async def _start_hosts(
    system: System,
    world: World,
    placement: Ref[Any],
    own_host: HostId | None,
    reach: Reach | None,
) -> Ref[Any]:
    if reach is None:
        assert own_host is not None
        make = own_host_maker(world, placement, own_host)
        return await system.start_child(ChildSpec(name="own-host", make=make))
    needs = HostsNeeds(
        world=world,
        placement=placement,
        open_host=reach.open_host,
        close_session=reach.close_session,
    )
    return await system.start_child(ChildSpec(name="hosts", make=hosts_maker(needs)))


def _expect_hosts(world: World, reach: Reach) -> None:
    """What is charged on a host counts before it has come back."""
    now_s = world.clock.monotonic_s()
    for record in world.directory.hosts.values():
        world.sessions.expect(record.id, now_s)
        if record.publication is not None:
            reach.open_host(record.id, record.publication)


async def _tell_session(world: World) -> None:
    started = NewEvent(
        kind="coordinator_session_started",
        deployment=None,
        operation=None,
        payload={"session_epoch": str(world.session_epoch)},
    )
    await world.store.commit(Change(events=(started,)))

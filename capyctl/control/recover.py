"""The control plane from what the store holds: one way to begin, fresh or after a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs

from actors import ChildSpec, Observer, Ref, Supervisor, System, open_system
from capyctl.contracts.store import Change
from capyctl.control.books import Books
from capyctl.control.catalogue import CatalogueActor, CatalogueNeeds
from capyctl.control.deployment import Resolver
from capyctl.control.placement import PlacementActor
from capyctl.control.surroundings import World
from capyctl.domain.events import NewEvent
from capyctl.domain.ids import HostId
from capyctl.machines.idling import IdlePolicy
from capyctl.machines.switch import WINDOW_S


@attrs.frozen(kw_only=True)
class ControlPlane:
    """The running actors that others talk to."""

    system: System
    catalogue: Ref[Any]
    placement: Ref[Any]
    books: Books
    """What placement keeps. Only its actor changes it."""


@asynccontextmanager
async def open_control(
    world: World,
    *,
    resolve: Resolver,
    measure_host: HostId,
    observer: Observer | None = None,
    window_s: float = WINDOW_S,
    idle: IdlePolicy | None = None,
) -> AsyncIterator[ControlPlane]:
    """Run the control plane over ``world`` until the block is left. Engines stay.

    Floors, lowest first: placement, instances, deployments, catalogue. Leaving stops the
    actors from the top; what runs on the hosts is left alone.
    """
    await _tell_session(world)
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
        await system.start_child(instances.as_child())
        await system.start_child(deployments.as_child())
        needs = CatalogueNeeds(
            world=world,
            placement=placement,
            deployments=deployments,
            instances=instances,
            resolve=resolve,
            measure_host=measure_host,
            idle=IdlePolicy() if idle is None else idle,
        )
        catalogue = await system.start_child(
            ChildSpec(name="catalogue", make=lambda: CatalogueActor(needs))
        )
        yield ControlPlane(
            system=system,
            catalogue=catalogue,
            placement=placement,
            books=books,
        )


async def _tell_session(world: World) -> None:
    started = NewEvent(
        kind="coordinator_session_started",
        deployment=None,
        operation=None,
        payload={"session_epoch": str(world.session_epoch)},
    )
    await world.store.commit(Change(events=(started,)))

"""The placement actor over several machines: who is granted where, who waits, who is refused."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import trio

from actors.testing import Probe
from capyctl.control.books import Books
from capyctl.control.directory import Directory
from capyctl.control.placement import PlacementActor
from capyctl.control.sessions import SessionState
from capyctl.control.surroundings import World
from capyctl.domain.devices import MemorySample
from capyctl.domain.hosts import HostPublication, HostRecord, QueueLimits
from capyctl.domain.ids import DeploymentId, HostId, InstanceId
from capyctl.domain.specs import Phase
from capyctl.domain.units import GIB
from capyctl.machines.deployment import Deployment
from capyctl.machines.instance import InstanceState
from capyctl.messages import instance as i
from capyctl.messages import placement as m
from capyctl.messages.deployment import FitAnswered
from capyctl.simulation.names import WorldClock, WorldIds
from tests.ledger.fleets import machine, places_on
from tests.machines.making import RESOLVED, SPEC

A, B = HostId("a"), HostId("b")
SHAPES = {A: machine("a"), B: machine("b")}
MODEL = DeploymentId("M" + "0" * 25)


class NoStore:
    async def commit(self, change):
        return None

    def submit(self, change):
        return


@attrs.define(eq=False)
class Bench:
    """The actor, what it keeps, and whom it tells."""

    world: World
    books: Books
    probes: dict[InstanceId, Probe] = attrs.field(factory=dict)
    deployments: dict[DeploymentId, Probe] = attrs.field(factory=dict)
    actor: PlacementActor | None = None
    asks_count: int = 0

    def instance_ref(self, id: InstanceId):
        return self.probes.setdefault(id, Probe(str(id))).ref

    async def tell(self, *messages) -> None:
        for message in messages:
            self.actor.ref.tell(message)
        await trio.testing.wait_all_tasks_blocked()

    async def reserve(self, number: int, gib: int, *hosts: HostId, **changes) -> InstanceId:
        """A start of an instance of the model; answers land in its probe."""
        self.asks_count += 1
        id = InstanceId(changes.pop("deployment", MODEL), number)
        self.instance_ref(id)
        places = tuple(p for host in hosts or SHAPES for p in places_on(SHAPES[host], gib))
        await self.tell(
            m.Reserve(
                ask=f"ask{self.asks_count}",
                instance=id,
                phase=Phase.COLD,
                candidates=places,
                may_evict=changes.pop("may_evict", False),
                for_request=changes.pop("for_request", False),
            )
        )
        return id

    def told(self, id: InstanceId) -> list[object]:
        return self.probes[id].drain()

    async def closed(self, host: HostId, why: str = "offline", *, parks: bool = True) -> None:
        await self.tell(m.HostEligible(host=host, eligible=not why, why=why, parks=parks))

    async def published(self, *hosts: HostId, **changes) -> None:
        for host in hosts:
            shape = SHAPES[host]
            await self.tell(m.HostPublished(host=host, name=host, shape=shape, **changes))

    def has(self, **changes) -> None:
        """What the model's document says."""
        made = Deployment(id=MODEL, spec=attrs.evolve(SPEC, **changes), resolved=RESOLVED)
        self.world.directory.deployments[MODEL] = made


@asynccontextmanager
async def bench(*published: HostId):
    directory = Directory()
    world = World(
        store=NoStore(),
        clock=WorldClock(),
        ids=WorldIds(),
        hosts={},
        directory=directory,
        session_epoch=1,
        log=lambda *_, **__: None,
    )
    made = Bench(world=world, books=Books.from_directory((), directory))
    made.actor = PlacementActor(world, made.books, instance_ref=made.instance_ref, first=True)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.actor.run)
        await made.published(*(published or (A, B)))
        yield made
        nursery.cancel_scope.cancel()


def granted(told: list[object]) -> list[HostId]:
    return [x.candidate.host for x in told if isinstance(x, i.Reserved)]


def reasons(told: list[object]) -> list[str]:
    return [x.reason for x in told if isinstance(x, i.ReserveWaits)]


async def test_instances_spread_over_machines(autojump_clock):
    async with bench() as here:
        one, two = await here.reserve(0, 4), await here.reserve(1, 4)

        assert granted(here.told(one)) == [A]
        assert granted(here.told(two)) == [B]


async def test_what_many_instances_tell_at_once_finds_room(autojump_clock):
    async with bench() as here:
        for number in range(100_000):
            id = InstanceId(MODEL, number % 20_000)
            here.actor.ref.tell(
                m.Occupy(
                    instance=id, state="ready", parks=True, protected=False, ready_elsewhere=False
                )
            )
        assert len(here.actor.ref.mailbox) == 100_000
        here.actor.ref.mailbox.drain()


async def test_a_machine_counts_once_it_is_published(autojump_clock):
    async with bench(A) as here:
        one = await here.reserve(0, 20)
        two = await here.reserve(1, 20)
        assert granted(here.told(one)) == [A]
        (why,) = reasons(here.told(two))
        assert "b: it has not connected yet" in why

        await here.published(B)

        assert granted(here.told(two)) == [B]


async def test_who_is_in_line_takes_a_place_that_is_known_later_and_keeps_its_turn(autojump_clock):
    async with bench() as here:
        await here.reserve(0, 20, A)
        first, second = await here.reserve(1, 20, A), await here.reserve(2, 20, A)
        ask, places = (
            f"ask{here.asks_count - 1}",
            (*places_on(SHAPES[A], 20), *places_on(SHAPES[B], 20)),
        )
        here.told(first), here.told(second)

        await here.tell(m.Widen(ask=ask, candidates=places))

        assert granted(here.told(first)) == [B]
        assert granted(here.told(second)) == []
        # Answered meanwhile, or given up: nothing is held for a request that is no more.
        for late in (ask, "never asked"):
            await here.tell(m.Widen(ask=late, candidates=places))
        assert list(here.books.line) == [f"ask{here.asks_count}"]
        assert granted(here.told(first)) == []


async def test_nothing_begins_on_a_machine_that_is_closed(autojump_clock):
    async with bench() as here:
        await here.closed(A, "draining")
        one = await here.reserve(0, 20)
        two = await here.reserve(1, 20)

        assert granted(here.told(one)) == [B]
        (why,) = reasons(here.told(two))
        assert "b: needs 20.0 GiB of gpu0 memory, 4.0 GiB available" in why
        assert "a: draining" in why

        await here.closed(A, "")
        assert granted(here.told(two)) == [A]


async def test_an_operators_start_waits_for_a_machine_and_a_request_does_not(autojump_clock):
    async with bench() as here:
        await here.closed(A)
        await here.closed(B, "draining")
        waits = await here.reserve(0, 4)
        refused = await here.reserve(1, 4, for_request=True)

        assert reasons(here.told(waits)) == [
            "host_ineligible: no machine that may run it can be used now (a: offline; b: draining)"
        ]
        (answer,) = here.told(refused)
        assert answer.code == "host_ineligible"


async def test_a_request_waits_for_a_machine_that_is_only_silent(autojump_clock):
    async with bench() as here:
        await here.closed(B)
        here.world.sessions.move(A, SessionState.SUSPENDED, 0.0)
        await here.closed(A, "it is silent")
        one = await here.reserve(0, 4, for_request=True)
        assert len(reasons(here.told(one))) == 1

        here.world.sessions.move(A, SessionState.LOST, 0.0)
        await here.closed(A)

        assert [x.code for x in here.told(one)] == ["host_ineligible"]


async def test_charges_stay_on_a_machine_that_is_lost(autojump_clock):
    async with bench() as here:
        one = await here.reserve(0, 20, A)
        await here.closed(A)

        assert here.books.ledger.entries[one].host == A
        assert here.books.ledger.charged_bytes((A, SHAPES[A].gpus[0].domain)) == 20 * GIB


async def test_no_more_on_a_machine_than_the_document_allows(autojump_clock):
    async with bench() as here:
        here.has(max_per_host=1, instances=3)
        ids = [await here.reserve(n, 4) for n in range(3)]

        assert [granted(here.told(id)) for id in ids[:2]] == [[A], [B]]
        (why,) = reasons(here.told(ids[2]))
        assert why.count("as many as placement.max_per_host allows") == 2


async def test_a_look_at_one_machine_serves_those_who_wait_for_it(autojump_clock):
    async with bench() as here:
        first = await here.reserve(0, 20, A)
        second = await here.reserve(1, 20, B)
        waits = await here.reserve(2, 20)
        assert granted(here.told(waits)) == []

        await here.tell(m.Free(instance=second))

        assert granted(here.told(waits)) == [B]
        assert granted(here.told(first)) == [A]


async def test_what_others_hold_on_one_machine_says_nothing_of_another(autojump_clock):
    async with bench() as here:
        full = MemorySample(at_s=1.0, available_bytes={SHAPES[A].gpus[0].domain: 0})
        await here.tell(m.Sampled(host=A, sample=full))

        one = await here.reserve(0, 4)

        assert granted(here.told(one)) == [B]


async def occupied(here: Bench, number: int, host: HostId) -> InstanceId:
    """An idle model that could park, on a machine."""
    id = await here.reserve(number, 20, host, deployment=DeploymentId(f"X{number}"))
    charges = places_on(SHAPES[host], 20)[0].charges
    await here.tell(
        m.Charge(instance=id, phase=Phase.READY, charges=charges.ready),
        m.Occupy(instance=id, state="stopped", parks=True, protected=False, ready_elsewhere=False),
    )
    return id


async def serving(here: Bench, number: int, host: HostId) -> InstanceId:
    """A ready model."""
    id = await occupied(here, number, host)
    known = here.books.occupancy[id]
    here.books.occupancy = {**here.books.occupancy, id: attrs.evolve(known, state="ready")}
    ready = attrs.evolve(here.world.directory.instance(id), state=InstanceState.READY)
    here.world.directory.deployments[id.deployment] = Deployment(id=id.deployment, spec=SPEC)
    here.world.directory.instances[id.deployment] = {id.index: ready}
    return id


async def test_each_machine_has_its_own_turn(autojump_clock):
    """Two switches at the same time, on two machines."""
    async with bench() as here:
        victims = [await serving(here, n, host) for n, host in enumerate([A, B])]

        await here.reserve(0, 20, A, may_evict=True, for_request=True)
        await here.reserve(1, 20, B, may_evict=True, for_request=True)

        assert sorted(here.books.turns) == [A, B]
        evicted = [[x for x in here.told(id) if isinstance(x, i.Evict)] for id in victims]
        assert [len(x) for x in evicted] == [1, 1]


async def test_nothing_is_parked_where_the_release_does_not_fit(autojump_clock):
    async with bench() as here:
        one = await here.reserve(0, 20, A)
        here.told(one)
        await here.closed(A, "upgrade_required: it runs capyctl 0.0.1", parks=False)

        await here.tell(m.AskPark(ask="p", instance=one, parked={}))

        (answer,) = here.told(one)
        assert isinstance(answer, i.NoParkRoom)
        assert "upgrade_required" in answer.reason


async def test_only_so_many_are_parked_on_a_machine(autojump_clock):
    async with bench() as here:
        await here.published(A, parked_max=1)
        one, two = await here.reserve(0, 4, A), await here.reserve(1, 4, A)
        here.told(one), here.told(two)

        await here.tell(m.AskPark(ask="p", instance=one, parked={}))
        await here.tell(m.AskPark(ask="q", instance=two, parked={}))

        assert [type(x) for x in here.told(one)] == [i.ParkRoom]
        (refused,) = here.told(two)
        assert refused.full == "no room to park"
        assert "as many as max_parked allows (1)" in refused.reason


async def test_a_start_that_no_machine_takes_is_answered_with_each(autojump_clock):
    async with bench() as here:
        here.has()
        probe = here.deployments[MODEL] = Probe("deployment")
        here.world.directory.deployment_refs[MODEL] = probe.ref
        await here.closed(A)
        await here.closed(B, "draining")
        places = tuple(p for shape in SHAPES.values() for p in places_on(shape, 4))
        question = m.FitQuestion(index=0, phase=Phase.COLD, candidates=places)

        asked = m.AskFit(request="r", deployment=MODEL, questions=(question,), evict=False)
        await here.tell(asked)

        (answer,) = probe.drain()
        assert isinstance(answer, FitAnswered)
        assert answer.code == "host_ineligible"
        assert answer.shortage == (
            "Instance 0: host_ineligible: no machine that may run it can be used now "
            "(a: offline; b: draining)"
        )


async def test_an_actor_that_began_anew_hears_of_hosts_again(autojump_clock):
    """Its mailbox went down with it, and what hosts had told in there."""
    async with bench() as here:
        limits = QueueLimits()
        publication = HostPublication(
            shape=SHAPES[A], version="0.1.0", models_root="/models", queue=limits
        )
        here.world.directory.hosts[A] = HostRecord(id=A, name="gpu-a", publication=publication)
        here.world.sessions.move(A, SessionState.LOST, 0.0)
        again = PlacementActor(here.world, here.books, instance_ref=here.instance_ref, first=False)
        async with trio.open_nursery() as nursery:
            await nursery.start(again.run)

            assert here.books.closed == {A: "offline"}
            nursery.cancel_scope.cancel()


async def test_each_machine_has_its_own_admission_window(autojump_clock):
    """What is the last of its model keeps serving for as long as its own machine says."""
    async with bench() as here:
        windows = {A: 1.0, B: 10.0}
        for host, window_s in windows.items():
            publication = HostPublication(
                shape=SHAPES[host],
                version="0.1.0",
                models_root="/models",
                queue=QueueLimits(admission_window_s=window_s),
            )
            here.world.directory.hosts[host] = HostRecord(
                id=host, name=host, publication=publication
            )
        victims = [await serving(here, n, host) for n, host in enumerate(windows)]
        for id in victims:
            here.world.directory.gate(id).last_used_s = trio.current_time()

        await here.reserve(0, 20, A, may_evict=True, for_request=True)
        await here.reserve(1, 20, B, may_evict=True, for_request=True)

        seen = []
        began_s = trio.current_time()
        for after_s in (0.9, 9.9, 10.5):
            await trio.sleep_until(began_s + after_s)
            await trio.testing.wait_all_tasks_blocked()
            seen.append([sum(isinstance(x, i.Evict) for x in here.told(id)) for id in victims])
        assert seen == [[0, 0], [1, 0], [0, 1]]

"""The control plane from outside: equal changes, crashes at bad moments, switching, retiring."""

from __future__ import annotations

import attrs
import pytest
import trio

from capyctl.domain.errors import Refused
from capyctl.domain.ids import InstanceId
from capyctl.messages.deployment import ActionKind as A
from capyctl.messages.instance import GateEmpty
from capyctl.simulation.faults import Faults
from capyctl.simulation.sim_store import InjectedFailure
from tests.control.worlds import place, spec

pytestmark = pytest.mark.slow


async def gathered(*calls):
    """What each of these came to, in their order."""
    found = [None] * len(calls)

    async def one(number, call):
        try:
            found[number] = await call
        except Refused as refused:
            found[number] = refused.code

    async with trio.open_nursery() as nursery:
        for number, call in enumerate(calls):
            nursery.start_soon(one, number, call)
    return found


# -- equal changes at the same moment --------------------------------------------------------


async def test_equal_creates_at_once_make_one_deployment(autojump_clock):
    async with place() as here, here.daemon() as session:
        sent = here.create()

        first, second = await gathered(session.desk.take(sent), session.desk.take(sent))

        assert first == second
        assert len(here.disk.deployments) == 1


async def test_another_create_of_the_name_is_a_conflict(autojump_clock):
    async with place() as here, here.daemon() as session:
        found = await gathered(session.desk.take(here.create()), session.desk.take(here.create()))

        assert "route_conflict" in found
        assert len(here.disk.deployments) == 1


async def test_equal_deletions_at_once_are_both_told_of_the_one(autojump_clock):
    async with place() as here, here.daemon() as session:
        id = await here.made(session)
        sent = here.act(id, A.DELETE)

        await session.desk.take(sent)

        assert await session.desk.take(sent) == here.disk.receipts[sent.key].response
        assert here.disk.deployments == {}


async def test_equal_replaces_at_once_make_one_revision(autojump_clock):
    async with place() as here, here.daemon() as session:
        id = await here.made(session)
        sent = here.replace(id, engine_part="8")

        first, second = await gathered(session.desk.take(sent), session.desk.take(sent))

        assert first == second
        assert here.disk.deployments[id].revision == 2


# -- names and routes ------------------------------------------------------------------------


async def test_a_refused_replace_gives_its_routes_back(autojump_clock):
    async with place() as here, here.daemon() as session:
        id = await here.made(session)
        other = here.replace(id, routes=("m", "wanted"))
        late = attrs.evolve(
            other, message=attrs.evolve(other.message, expected_revision=7, receipt=here.key("x"))
        )
        with pytest.raises(Refused, match="revision"):
            await session.desk.take(late)

        await session.desk.take(here.create("n", routes=("wanted",)))

        assert len(here.disk.deployments) == 2


async def test_routes_of_another_are_refused(autojump_clock):
    async with place() as here, here.daemon() as session:
        await here.made(session, "m")
        id = await here.made(session, "n")

        with pytest.raises(Refused) as refused:
            await session.desk.take(here.replace(id, routes=("n", "m")))

        assert refused.value.code == "route_conflict"


async def test_what_was_deleted_leaves_its_name(autojump_clock):
    async with place() as here, here.daemon() as session:
        id = await here.made(session)
        await session.desk.take(here.act(id, A.DELETE))

        again = await here.made(session)

        assert again != id


# -- crashes ---------------------------------------------------------------------------------


async def test_a_mark_is_kept_though_its_instance_never_read_of_it(autojump_clock):
    async with place() as here:
        async with here.daemon() as session:
            id = await here.made(session)
            session.courier.closed = True
            await session.desk.take(here.act(id, A.STOP, instance=0))
            session.end()
        assert not here.one(id).operator_stopped

        async with here.daemon() as session:
            await here.until(lambda: here.one(id).operator_stopped)
            assert await session.requests.one(id) == "deployment_stopped"


async def test_a_start_that_was_accepted_is_begun_by_the_next_daemon(autojump_clock):
    async with place() as here:
        async with here.daemon() as session:
            id = await here.made(session)
            session.courier.closed = True
            # With a courier that carries nothing, placement cannot be asked: only a stop is.
            with pytest.raises(Refused):
                await session.desk.take(here.act(id, A.START))
            session.end()

        async with here.daemon() as session:
            await here.started(session, id)


async def test_an_engine_that_was_starting_is_found_and_not_ended(autojump_clock):
    """Its latch is gone because it was opened: by the daemon before."""
    async with place() as here:
        async with here.daemon() as session:
            id = await here.made(session)
            await session.desk.take(here.act(id, A.START))
            await here.until(lambda: any(e.state.value == "loading" for e in here.host.alive))
            session.end()

        async with here.daemon():
            await here.until(lambda: here.state(id) == "ready")

        assert len(here.host.engines) == 1
        assert "initialize_failed_released" not in here.kinds()


async def test_a_start_whose_latch_was_never_opened_begins_anew(autojump_clock):
    """The operation that was accepted is carried out, by another launch, under the same id."""
    async with place() as here:
        async with here.daemon() as session:
            id = await here.made(session)
            session.store.after = lambda _: session.end() if here.one(id).launch else None
            await session.desk.take(here.act(id, A.START))
            await session.over.wait()
        lost = here.one(id)

        async with here.daemon():
            await here.until(lambda: here.state(id) in ("failed", "ready"))

        assert here.state(id) == "ready"
        assert here.one(id).launch_id != lost.launch_id
        assert len(here.host.alive) == 1
        assert "initialize_failed_released" not in here.kinds()


async def test_a_parked_model_makes_room_after_a_restart(autojump_clock):
    """Placement is told what it may move by daemons that just began, too."""
    async with place() as here:
        async with here.daemon() as session:
            first = await here.made(session, "first", engine_part="24")
            second = await here.made(session, "second", engine_part="24")
            await here.started(session, first)
            await session.desk.take(here.act(first, A.PARK))
            await here.until(lambda: here.state(first) == "parked")
            session.end()

        async with here.daemon() as session:
            assert await session.requests.one(second) == "served"

        assert here.state(first) == "stopped"


async def test_an_actor_that_fails_is_told_again_what_it_had_not_read(autojump_clock):
    async with place() as here, here.daemon() as session:
        id = await here.made(session)
        await here.started(session, id)
        failing = session.failing
        first = failing.commit

        async def fails_once(change):
            if any(getattr(r, "state", None) and r.id == InstanceId(id, 0) for r in change.puts):
                failing.commit = first
                raise InjectedFailure("a bug in an actor")
            return await first(change)

        failing.commit = fails_once
        await session.desk.take(here.act(id, A.STOP))

        await here.until(lambda: here.state(id) == "stopped")
        assert not any(o.open for o in here.disk.operations.values())


# -- requests --------------------------------------------------------------------------------


async def test_a_deletion_answers_who_waits(autojump_clock):
    """Their model's files were still being measured."""
    faults = Faults(unmeasurable_chance=1.0)
    async with place(faults) as here, here.daemon() as session:
        await session.desk.take(here.create())
        (id,) = here.disk.deployments
        answers = []

        async def ask():
            answers.append(await session.requests.one(id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await here.until(lambda: session.directory.admission(id).waiting_count == 1)
            await session.desk.take(here.act(id, A.DELETE))

    assert answers == ["unknown_model"]


async def test_a_request_moves_an_idle_model_out_of_its_way(autojump_clock):
    async with place() as here, here.daemon() as session:
        first = await here.made(session, "first")
        second = await here.made(session, "second")
        assert await session.requests.one(first) == "served"

        assert await session.requests.one(second) == "served"

        assert here.state(first) == "parked"
        switches = [kind for kind in here.kinds() if kind.startswith("switch")]
        assert switches == [
            "switch_planned",
            "switch_admission_closed",
            "switch_released",
            "switch_completed",
        ]


async def test_a_victim_that_refuses_to_park_is_stopped(autojump_clock):
    faults = Faults(park_refused_chance=1.0)
    async with place(faults) as here, here.daemon() as session:
        first = await here.made(session, "first")
        second = await here.made(session, "second")
        assert await session.requests.one(first) == "served"

        assert await session.requests.one(second) == "served"

        assert here.state(first) == "stopped"


async def test_a_report_of_an_empty_gate_does_not_count_once_it_was_entered_again(autojump_clock):
    async with place() as here, here.daemon() as session:
        id = await here.made(session)
        await here.started(session, id)
        gate = session.directory.gate(InstanceId(id, 0))
        admission = session.directory.admission(id)
        lease = admission.try_enter(trio.current_time())
        await session.desk.take(here.act(id, A.PARK))
        await here.until(lambda: here.state(id) == "park_drain")

        session.courier.tell(
            session.directory.instance_refs[InstanceId(id, 0)],
            GateEmpty(launch=here.one(id).launch_id),
        )
        await trio.sleep(5)

        assert here.state(id) == "park_drain"
        assert gate.lease_count == 1
        admission.leave(lease, trio.current_time())
        await here.until(lambda: here.state(id) == "parked")


# -- preinitialize, replace ------------------------------------------------------------------


async def test_preinitialize_ends_when_an_engine_refuses_to_park(autojump_clock):
    faults = Faults(park_refused_chance=1.0)
    async with place(faults) as here, here.daemon() as session:
        id = await here.made(session)
        await session.desk.take(here.act(id, A.PREINITIALIZE))

        await here.until(lambda: here.disk.deployments[id].preinitialize is None)

        assert here.kinds().count("park_refused") == 1


async def test_preinitialize_ends_at_its_deadline_though_nothing_moves(autojump_clock):
    async with place(Faults(hang_chance=1.0)) as here, here.daemon() as session:
        id = await here.made(session)
        await session.desk.take(here.act(id, A.PREINITIALIZE, deadline_s=40.0))
        for engine in here.host.engines.values():
            engine.undying_s = 10_000.0
        await here.until(lambda: bool(here.host.engines))
        for engine in here.host.engines.values():
            engine.undying_s = 10_000.0
        began_s = trio.current_time()

        await here.until(lambda: here.disk.deployments[id].preinitialize is None)

        assert trio.current_time() - began_s < 50.0
        await here.until(lambda: here.state(id) == "uncertain")


async def test_an_index_that_retired_is_used_again_at_once(autojump_clock):
    slow = Faults(commit_delay_max_s=3.0)
    async with place() as here, here.daemon(slow) as session:
        id = await here.made(session, gib=5, instances=3)
        await here.started(session, id)
        for count in (1, 3, 1, 3):
            await session.desk.take(here.replace(id, instances=count))
            await here.until(lambda: all(not o.open for o in here.disk.operations.values()))
        await here.started(session, id)

        assert [here.state(id, index) for index in range(3)] == ["ready"] * 3


async def test_a_replace_restarts_one_instance_after_the_other(autojump_clock):
    async with place() as here, here.daemon() as session:
        id = await here.made(session, gib=5, instances=2)
        await here.started(session, id)

        await session.desk.take(here.replace(id, engine_part="6"))
        await here.until(
            lambda: (
                [(here.one(id, i).revision, here.state(id, i)) for i in (0, 1)]
                == [(2, "ready")] * 2
            )
        )

        stops = [k for k in here.kinds() if k == "ordinary_cleanup_completed"]
        assert len(stops) == 2


def test_the_specification_of_a_world_names_its_size():
    assert spec("m", gib=7).engine_part == "7"

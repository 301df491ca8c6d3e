"""What a cut, a silence or a restart does to calls, engines and the news of a host."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
import trio

from capyctl.contracts.engines import EngineBroken
from capyctl.contracts.host import EndOutcome
from capyctl.domain.devices import Gpu
from capyctl.domain.hosts import HostRecord, HostState, IngressAddress, QueueLimits
from capyctl.domain.ids import HostId
from capyctl.link.dial import host_session
from capyctl.wire.link import Call, write_frame
from capyctl.wire.link_calls import Prepare, to_wire
from tests.link.fakes import HOST, PUBLICATION, order
from tests.link.rig import open_rig

ONLINE, AGAIN = "online fresh supported", "online again supported"


class Asked:
    """A call that runs beside the test, and what became of it."""

    def __init__(self, nursery, call, *args, **named):
        self.value = self.problem = None
        self.ends_count = 0
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        nursery.start_soon(self._run, partial(call, *args, **named))

    async def _run(self, call):
        with self.scope:
            try:
                self.value = await call()
            except Exception as problem:
                self.problem = problem
            self.ends_count += 1
        self.ended.set()


async def serving(rig, launch="1"):
    """The record of an engine that runs, known to the server."""
    record = await rig.remote.prepare(order(launch))
    rig.directory.launches[record.launch] = record
    await rig.remote.run(record)
    await rig.remote.wait_ready(record, None)
    return record


# -- calls --------------------------------------------------------------------------------------


async def test_a_call_goes_on_through_a_cut_and_is_done_once(autojump_clock):
    async with open_rig() as rig:
        rig.machine.takes_s["prepare"] = 20.0
        asked = Asked(rig.nursery, rig.remote.prepare, order())
        await trio.sleep(1)
        rig.wire.cut()
        await asked.ended.wait()

        assert asked.value.launch == order().launch
        assert rig.machine.calls["prepare", order().launch] == 1
        assert rig.events.names == [ONLINE, AGAIN]


async def test_an_answer_that_was_lost_on_its_way_is_told_again(autojump_clock):
    async with open_rig() as rig:
        rig.machine.takes_s["prepare"] = 1.0
        asked = Asked(rig.nursery, rig.remote.prepare, order())
        await trio.sleep(0.5)
        rig.wire.stick(True)
        await trio.sleep(1)
        assert rig.machine.alive == {order().launch}
        rig.wire.cut()
        await asked.ended.wait()

        assert asked.value.launch == order().launch
        assert rig.machine.calls["prepare", order().launch] == 1
        assert rig.machine.alive == {order().launch}


async def test_a_call_that_comes_twice_is_done_once(autojump_clock):
    async with open_rig() as rig:
        rig.machine.takes_s["prepare"] = 2.0
        id = "0" * 26
        call = Call(id=id, method="prepare", params=to_wire(Prepare(order=order())))
        for pause_s in (1.0, 5.0):
            await rig.wire.there.send(write_frame(call))
            await trio.sleep(pause_s)

        assert rig.machine.calls["prepare", order().launch] == 1


async def test_a_call_that_is_cancelled_while_the_two_agree_is_cancelled(autojump_clock):
    async with open_rig() as rig:
        rig.machine.takes_s["measure"] = 100.0
        rig.strays.takes_s = 5.0
        asked = Asked(rig.nursery, rig.remote.measure, "/m", weights_file=None)
        await trio.sleep(1)
        rig.wire.cut()
        await trio.sleep(3)
        asked.scope.cancel()
        await rig.live(2)
        await trio.sleep(1)

        assert rig.service.open_count == 0


async def test_a_call_that_never_arrived_is_sent_again(autojump_clock):
    async with open_rig() as rig:
        record = await serving(rig)
        rig.wire.half_open(1)
        asked = Asked(rig.nursery, rig.remote.park, record)
        await asked.ended.wait()

        assert asked.problem is None
        assert rig.machine.calls["park", record.launch] == 1


async def test_calls_wait_while_there_is_no_session(autojump_clock):
    async with open_rig(started=False) as rig:
        asked = Asked(rig.nursery, rig.remote.prepare, order())
        await trio.sleep(100)
        assert not asked.ended.is_set()
        rig.start_host()
        await asked.ended.wait()

        assert asked.value.launch == order().launch


async def test_what_was_cancelled_while_it_could_not_be_told_is_not_done(autojump_clock):
    async with open_rig() as rig:
        rig.machine.takes_s["prepare"] = 20.0
        asked = Asked(rig.nursery, rig.remote.prepare, order())
        await trio.sleep(1)
        rig.network = False
        rig.wire.cut()
        await trio.sleep(1)
        asked.scope.cancel()
        rig.network = True
        await rig.live(2)
        await trio.sleep(30)

        assert rig.machine.alive == set()


async def test_a_launch_that_was_prepared_for_nobody_is_discarded(autojump_clock):
    """Its caller left as the answer was on its way."""
    async with open_rig() as rig:
        rig.wire.delay(0.5)
        asked = Asked(rig.nursery, rig.remote.prepare, order())
        await trio.sleep(0.75)
        assert rig.machine.alive == {order().launch}
        asked.scope.cancel()
        await trio.sleep(1)

        assert rig.machine.alive == set()
        assert rig.machine.calls["discard", order().launch] == 1


async def test_the_host_keeps_no_answer_that_was_heard(autojump_clock):
    async with open_rig() as rig:
        await serving(rig)
        await trio.sleep(1)

        assert rig.service.open_count == 0


async def test_a_restarted_host_does_again_what_may_be_done_again(autojump_clock):
    async with open_rig() as rig:
        rig.machine.takes_s["prepare"] = 5.0
        prepared = Asked(rig.nursery, rig.remote.prepare, order())
        await trio.sleep(1)
        rig.kill_host()
        rig.start_host()
        await prepared.ended.wait()

        assert prepared.value.launch == order().launch
        assert rig.machine.calls["prepare", order().launch] == 2
        assert rig.events.names == [ONLINE, ONLINE]


@pytest.mark.parametrize("method", ["park", "wake"])
async def test_a_restarted_host_neither_parks_nor_wakes_again(method, autojump_clock):
    async with open_rig() as rig:
        record = await serving(rig)
        rig.machine.takes_s[method] = 5.0
        asked = Asked(rig.nursery, getattr(rig.remote, method), record)
        await trio.sleep(1)
        rig.kill_host()
        rig.start_host()
        await asked.ended.wait()

        assert isinstance(asked.problem, EngineBroken)
        assert asked.problem.code == "host_restarted"
        assert rig.machine.calls[method, record.launch] == 1


async def test_a_park_that_the_former_process_never_got_is_sent_to_the_next(autojump_clock):
    async with open_rig() as rig:
        record = await serving(rig)
        rig.kill_host()
        await trio.sleep(1)
        asked = Asked(rig.nursery, rig.remote.park, record)
        await trio.sleep(1)
        rig.start_host()
        await asked.ended.wait()

        assert asked.problem is None


async def test_exits_are_told_of_engines_that_ended_while_nobody_listened(autojump_clock):
    async with open_rig() as rig:
        record = await serving(rig)
        exit = Asked(rig.nursery, rig.remote.wait_exit, record)
        await trio.sleep(1)
        rig.network = False
        rig.wire.cut()
        rig.machine.engines[record.launch].end()
        await trio.sleep(10)
        rig.network = True
        await exit.ended.wait()

        assert exit.value.exit_code == -9
        assert not rig.remote.is_running(record)


# -- agreeing -----------------------------------------------------------------------------------


async def test_engines_that_the_server_does_not_know_are_ended(autojump_clock):
    async with open_rig() as rig:
        known, unknown = await serving(rig, "1"), await serving(rig, "2")
        del rig.directory.launches[unknown.launch]
        await trio.sleep(100)
        assert rig.machine.alive == {known.launch, unknown.launch}
        rig.wire.cut()
        await rig.live(2)

        assert rig.machine.alive == {known.launch}


async def test_a_launch_that_is_being_stored_is_no_stranger(autojump_clock):
    """Its record came a moment ago, and the connection was cut before it was durable."""
    async with open_rig() as rig:
        record = await rig.remote.prepare(order())
        rig.wire.cut()
        await rig.live(2)
        assert rig.machine.alive == {record.launch}
        await trio.sleep(100)
        rig.wire.cut()
        await rig.live(3)

        assert rig.machine.alive == set()


async def test_a_launch_that_is_being_prepared_is_no_stranger(autojump_clock):
    async with open_rig() as rig:
        rig.machine.takes_s["prepare"] = 3.0
        rig.strays.takes_s = 6.0
        asked = Asked(rig.nursery, rig.remote.prepare, order())
        await trio.sleep(1)
        rig.wire.cut()
        await asked.ended.wait()
        await trio.sleep(10)

        assert rig.machine.alive == {order().launch}


async def test_a_restarted_server_begins_anew_with_what_it_has_stored(autojump_clock):
    async with open_rig() as rig:
        known, unknown = await serving(rig, "1"), await serving(rig, "2")
        del rig.directory.launches[unknown.launch]
        rig.machine.takes_s["measure"] = 50.0
        Asked(rig.nursery, rig.remote.measure, "/m", weights_file=None)
        await trio.sleep(1)
        rig.kill_server()
        await trio.sleep(3)
        rig.start_server()
        await rig.live(2)
        await trio.sleep(1)

        assert rig.events.names == [ONLINE, ONLINE]
        assert rig.machine.alive == {known.launch}
        assert rig.service.open_count == 0
        assert rig.remote.is_running(known)


async def test_the_host_says_what_runs_of_what_the_server_knows(autojump_clock):
    async with open_rig() as rig:
        gone, here = await serving(rig, "1"), await serving(rig, "2")
        rig.kill_host()
        rig.kill_server()
        rig.machine.engines[gone.launch].end()
        rig.start_server()
        assert rig.remote.is_running(gone)
        rig.start_host()
        await rig.live(2)

        assert not rig.remote.is_running(gone)
        assert rig.remote.is_running(here)


async def test_ending_strays_does_not_hold_up_a_session_for_ever(autojump_clock):
    async with open_rig() as rig:
        await serving(rig)
        await trio.sleep(100)
        rig.directory.launches.clear()
        rig.strays.takes_s = 300.0
        rig.wire.cut()
        began_s = trio.current_time()
        await rig.live(2)
        assert 30 <= trio.current_time() - began_s < 35
        await trio.sleep(300)

        assert rig.machine.alive == set()


# -- standing -----------------------------------------------------------------------------------


async def test_a_blip_is_no_news(autojump_clock):
    async with open_rig() as rig:
        rig.network = False
        rig.wire.cut()
        await trio.sleep(2)
        rig.network = True
        await trio.sleep(20)

        assert rig.events.names == [ONLINE, AGAIN]


async def test_silence_suspends_and_then_loses_a_host(autojump_clock):
    async with open_rig() as rig:
        began_s = trio.current_time()
        rig.network = False
        rig.wire.cut()
        await trio.sleep(100)
        rig.network = True
        await rig.live(2)

        times = {name: at_s - began_s for at_s, name in rig.events.told}
        assert rig.events.names == [ONLINE, "suspended", "lost", ONLINE]
        assert 4.0 <= times["suspended"] <= 6.0
        assert 29.0 <= times["lost"] <= 31.0


@pytest.mark.parametrize("ways", [(0,), (1,), (0, 1)], ids=str)
async def test_a_half_open_connection_is_noticed_and_replaced(ways, autojump_clock):
    """0: what the host sends is lost; 1: what the server sends is."""
    async with open_rig() as rig:
        record = await serving(rig)
        for way in ways:
            rig.wire.half_open(way)
        await rig.live(2)
        assert (await rig.remote.sample_engine(record)).running == 2

        assert "lost" not in rig.events.names
        assert rig.events.names[-1] == AGAIN


async def test_what_was_held_up_and_comes_too_late_changes_nothing(autojump_clock):
    async with open_rig() as rig:
        record = await serving(rig)
        stalled = rig.wire
        stalled.stick(True)
        asked = Asked(rig.nursery, rig.remote.park, record)
        await rig.live(2)
        stalled.stick(False)
        await asked.ended.wait()
        await trio.sleep(10)

        assert asked.problem is None
        assert rig.machine.calls["park", record.launch] == 1
        assert rig.events.names[-1] == AGAIN


async def test_a_host_that_does_not_come_after_a_start_is_lost(autojump_clock):
    async with open_rig(started=False) as rig:
        rig.server.expect(HOST)
        await trio.sleep(29)
        assert rig.events.names == []
        await trio.sleep(2)
        assert rig.events.names == ["lost"]
        rig.start_host()
        await rig.live()

        assert rig.events.names == ["lost", ONLINE]


async def test_a_newer_session_takes_the_place_of_an_older_one(autojump_clock):
    async with open_rig() as rig:
        older = rig.wire
        record = await serving(rig)
        async with rig.dial() as channel, trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(host_session, rig.service, channel, version="0.1.0", log=rig.log)
            )
            await rig.live(2)
            assert older.there.out.closed is not None
            assert (await rig.remote.park(record)).attributed is False
            nursery.cancel_scope.cancel()

        assert ("host_session_ended", {"host": HOST, "why": "replaced"}) in rig.logged


async def test_a_revoked_host_is_sent_away_and_does_not_come_back(autojump_clock):
    async with open_rig() as rig:
        record = rig.directory.records[HOST]
        rig.directory.records[HOST] = attrs.evolve(record, state=HostState.REVOKED)
        rig.server.dismiss(HOST)
        assert rig.events.names[-1] == "lost"
        await trio.sleep(5)

        assert rig.sent_away.code == "host_revoked"
        assert "--recover" in rig.sent_away.message


# -- ends ---------------------------------------------------------------------------------------


async def test_what_is_published_anew_is_told(autojump_clock):
    async with open_rig() as rig:
        fresh = attrs.evolve(rig.publication, labels={"rack": "2"})
        rig.service.publish(fresh)
        await rig.live(2)

        assert rig.events.names == [ONLINE, AGAIN]
        assert rig.events.publications[-1] == fresh


async def test_a_machine_with_other_devices_than_were_enrolled_is_refused(autojump_clock):
    async with open_rig(started=False) as rig:
        card = Gpu(id="gpu0", uuid="GPU-0", name="card", total_bytes=1, domain="gpu0")
        shape = attrs.evolve(rig.publication.shape, gpus=(card,))
        enrolled = attrs.evolve(rig.publication, shape=shape)
        rig.directory.records[HOST] = HostRecord(id=HOST, name="gpu-a", publication=enrolled)
        rig.start_host()
        await trio.sleep(20)

        assert rig.events.names == []
        assert "enrolled was one with gpu0 (GPU-0)" in rig.changes[0]


@pytest.mark.parametrize(
    ("version", "comes_to"),
    [
        ("0.1.7", "online fresh supported"),
        ("0.0.3", "online fresh upgrade_recommended"),
        ("next", "online fresh upgrade_required"),
    ],
)
async def test_releases_beside_each_other(version, comes_to, autojump_clock):
    async with open_rig(started=False) as rig:
        rig.version = version
        rig.start_host()
        await rig.live()

        assert rig.events.names == [comes_to]


@pytest.mark.parametrize("version", ["0.2.0", "1.0.0"])
async def test_a_newer_host_is_refused_until_its_server_is_upgraded(version, autojump_clock):
    async with open_rig(started=False) as rig:
        rig.version = version
        rig.start_host()
        await trio.sleep(120)

        assert rig.events.names == []
        assert "upgrade the server first" in rig.changes[0]
        assert len(rig.changes) == 1
        assert 3 <= len(rig.wires) <= 8


async def test_requests_get_in_from_a_proof_until_a_park_or_an_end(autojump_clock):
    async with open_rig() as rig:
        record = await rig.remote.prepare(order())
        await rig.remote.run(record)
        assert rig.openings.open_now == {}
        await rig.remote.wait_ready(record, order())
        first = rig.remote.endpoint(record)
        assert rig.openings.open_now == {record.launch: first.ingress.generation}
        await rig.remote.park(record)
        assert rig.openings.open_now == {}
        await rig.remote.wake(record)
        second = rig.remote.endpoint(record)
        assert rig.openings.open_now == {record.launch: second.ingress.generation}
        assert await rig.remote.end(record, grace_s=0, idle_s=0) is EndOutcome.GONE

        assert rig.openings.open_now == {}
        assert first.ingress.generation != second.ingress.generation
        assert (first.host, first.port, first.key) == ("192.0.2.7", 7446, None)
        assert rig.openings.endpoints[record.launch].key == "secret"


async def test_a_look_that_hangs_holds_up_no_heartbeat(autojump_clock):
    async with open_rig() as rig:
        await serving(rig)
        rig.machine.takes_s["sample_engine"] = 1000.0
        await trio.sleep(100)

        assert rig.events.names == [ONLINE]
        assert rig.events.samples[-1].engines == {}
        assert rig.events.samples[-1].memory is not None


async def test_a_look_that_fails_is_said_once(autojump_clock):
    async with open_rig(started=False) as rig:
        rig.machine.takes_s["sample"] = 1e9
        rig.start_host()
        await rig.live()
        await trio.sleep(10)
        assert rig.events.samples[-1].memory is None
        rig.machine.takes_s.clear()
        await trio.sleep(10)

        assert rig.events.samples[-1].memory is not None


async def test_the_server_hears_of_serving_engines_every_second(autojump_clock):
    async with open_rig() as rig:
        record = await serving(rig)
        await trio.sleep(5)
        rig.events.samples.clear()
        await trio.sleep(10)
        heard = list(rig.events.samples)
        await rig.remote.park(record)
        await trio.sleep(5)

        assert 9 <= len(heard) <= 11
        assert all(sample.engines[record.launch].running == 2 for sample in heard)
        assert rig.events.samples[-1].engines == {}


async def test_a_live_host_cannot_become_another_machine(autojump_clock):
    shape = PUBLICATION.shape
    other = attrs.evolve(PUBLICATION, shape=attrs.evolve(shape, host=HostId("ANOTHER")))
    async with open_rig() as rig:
        rig.service.publish(other)
        await trio.sleep(1)

        assert rig.remote.publication == PUBLICATION
        ended = [f["why"] for name, f in rig.logged if name == "host_session_ended"]
        assert "another machine" in ended[0]


IMPOSSIBLE = [
    ({"queue": QueueLimits(running_per_deployment_max=0)}, "queue.running_per_deployment_max is 0"),
    ({"queue": QueueLimits(pending_total_max=-1)}, "queue.pending_total_max is -1"),
    ({"queue": QueueLimits(request_deadline_s=-1.0)}, "queue.request_deadline_s is -1"),
    ({"ingress": IngressAddress(host="a\r\nX: b", port=1)}, "ingress.host"),
    ({"ingress": IngressAddress(host="a", port=99_999)}, "ingress.port is 99999"),
    ({"max_parked_count": -1}, "max_parked_count"),
]


@pytest.mark.parametrize(("changes", "words"), IMPOSSIBLE, ids=[words for _, words in IMPOSSIBLE])
async def test_no_host_binds_a_server_to_what_makes_no_sense(changes, words, autojump_clock):
    async with open_rig() as rig:
        rig.service.publish(attrs.evolve(PUBLICATION, **changes))
        await trio.sleep(30)

        assert rig.remote.publication == PUBLICATION
        (ended,) = [f["why"] for name, f in rig.logged if name == "host_session_ended"][:1]
        assert words in ended
        assert words in rig.changes[-1]

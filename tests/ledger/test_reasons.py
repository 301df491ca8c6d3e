"""Reasons carry need, what is available, who holds the rest, and what to do."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.domain.specs import HostRefusal, Phase
from capyctl.domain.units import GIB
from capyctl.ledger.ledger import Entry, foreign_since, hold, open_ledger, promise_park, shortage
from capyctl.ledger.places import Hosts, Wanted
from capyctl.ledger.plan import NoRoom, plan
from capyctl.ledger.reasons import why_no_room, why_not_parked
from capyctl.ledger.victims import full_name, parked_shortage
from tests.ledger.fleets import entry_on, machine, places_on
from tests.ledger.test_whole_host import HOST, NEW, candidate, gib, occupant, shape

NAMES = {"Q": "qwen", "P": "poet", "S": "scribe", "T": "tiny"}


def one(letter: str) -> InstanceId:
    return InstanceId(DeploymentId(letter * 26), 0)


def named(instance: InstanceId) -> str:
    return NAMES[instance.deployment[0]]


def held(letter: str, phase: Phase, **charges) -> Entry:
    return Entry(instance=one(letter), host=HOST, phase=phase, charges=gib(**charges))


def full(*entries):
    ledger = open_ledger((shape(),))
    for entry in entries:
        ledger = hold(ledger, entry)
    return ledger


def asked(ledger, place, occupants=()):
    wanted = Wanted(instance=NEW, phase=Phase.COLD, candidates=(place,))
    found = plan(ledger, wanted, {o.instance: o for o in occupants}, may_evict=False)
    assert isinstance(found, NoRoom)
    return found


def test_who_holds_it_comes_after_the_figures():
    ledger = full(held("Q", Phase.READY, gpu0=14), held("P", Phase.PARKED, gpu0=1))
    occupants = [attrs.evolve(occupant(), instance=one("Q"))]

    why = why_no_room(asked(ledger, candidate(cold_ram=4), occupants), named)

    assert why == (
        "insufficient_device_memory: needs 20.0 GiB of gpu0 memory, 7.0 GiB available "
        "(held: qwen 14.0 GiB ready, poet 1.0 GiB parked); park or stop one of these models"
    )


def test_only_the_largest_are_named():
    ledger = full(
        *(held(x, Phase.READY, gpu0=n) for x, n in [("Q", 9), ("P", 6), ("S", 3), ("T", 1)])
    )

    why = why_no_room(asked(ledger, candidate(cold_ram=4)), named)

    assert "qwen 9.0 GiB ready, poet 6.0 GiB ready, scribe 3.0 GiB ready, 1 more 1.0 GiB" in why


def test_one_that_is_too_large_is_told_the_limit():
    why = why_no_room(asked(full(), candidate(cold_ram=4, ready_ram=4, charges=charged(30))), named)

    assert why == (
        "insufficient_device_memory: needs 30.0 GiB of gpu0 memory, 22.0 GiB available; "
        "the limit is 22.0 GiB: give the model less memory"
    )


def charged(gpu0):
    held = gib(4, gpu0)
    return attrs.evolve(candidate().charges, cold=held, ready=held, parking=held, wake=held)


def test_host_ram_has_its_own_code():
    ledger = full(held("Q", Phase.READY, system=100))

    why = why_no_room(asked(ledger, candidate(cold_ram=72)), named)

    assert why.startswith(
        "insufficient_memory: needs 72.0 GiB of system memory, 28.0 GiB available"
    )


def test_a_whole_host_says_so():
    ledger = full(held("Q", Phase.READY, gpu0=1))

    why = why_no_room(asked(ledger, candidate()), named)

    assert why.startswith("startup_requires_empty_host: needs 200.0 GiB of system memory")
    assert why.endswith("park or stop what runs")


def test_memory_of_other_programs_is_said():
    short = shortage(full(), HOST, gib(4, 20), foreign={(HOST, "gpu0"): 9 * GIB})

    why = why_no_room(NoRoom(short=short, hopeless=False), named)

    assert "14.0 GiB available (held: programs outside capyctl 8.0 GiB beyond" in why
    assert why.endswith("end the programs that hold it, or give the model less memory")


def test_nowhere_at_all():
    assert why_no_room(NoRoom(short=None, hopeless=True), named).startswith("no_host_fits: ")


# -- parked room -----------------------------------------------------------------------------


def test_the_parked_limit_is_one_of_its_own():
    ledger = full(held("P", Phase.PARKED, gpu0=9), held("Q", Phase.READY, gpu0=10))

    short = parked_shortage(ledger, ledger.entries[one("Q")], gib(4, 3))

    assert why_not_parked(short, named) == (
        "parked it would keep 3.0 GiB of gpu0 memory, 2.0 GiB of the 11.0 GiB for parked models "
        "available (held: poet 9.0 GiB parked); stop a parked model, or stop this one"
    )
    assert full_name(short) == "no room to park"


def test_host_ram_of_copies_may_be_what_is_full():
    ledger = full(held("P", Phase.PARKED, system=62), held("Q", Phase.READY, gpu0=10))

    short = parked_shortage(ledger, ledger.entries[one("Q")], gib(4, 1))

    assert full_name(short) == "host RAM full"


@pytest.mark.parametrize(("promised", "fits"), [(False, True), (True, False)])
def test_a_park_under_way_has_its_room_already(promised, fits):
    """Two parks at the same moment do not count on the same room."""
    ledger = full(held("P", Phase.READY, gpu0=9), held("Q", Phase.READY, gpu0=10))
    if promised:
        ledger = promise_park(ledger, one("P"), gib(4, 9))

    short = parked_shortage(ledger, ledger.entries[one("Q")], gib(4, 3))

    assert (short is None) is fits


# -- what others hold ------------------------------------------------------------------------


def sample(available_gib=None, at_s=1.0):
    from capyctl.domain.devices import MemorySample

    seen = {} if available_gib is None else {"gpu0": available_gib * GIB}
    return {HOST: MemorySample(at_s=at_s, available_bytes=seen)}


POOL = (HOST, "gpu0")


def test_a_look_that_misses_a_card_keeps_what_was_known():
    known = foreign_since(full(), sample(34), {})

    assert known[POOL] == 10 * GIB
    assert foreign_since(full(), sample(None), known) == known


def test_a_charge_that_is_not_resident_yet_hides_nobody():
    """10 GiB of others stay known while a start of 8 GiB loads."""
    known = foreign_since(full(), sample(34), {})
    loading = full(held("Q", Phase.COLD, gpu0=8))
    serving = full(held("Q", Phase.READY, gpu0=8))

    assert foreign_since(loading, sample(34), known)[POOL] == 10 * GIB
    assert foreign_since(serving, sample(26), known)[POOL] == 10 * GIB
    assert foreign_since(serving, sample(36), known)[POOL] == 0


# -- several machines ------------------------------------------------------------------------

HERE = {"a": "gpu-a", "b": "gpu-b", "c": "gpu-c", "d": "gpu-d"}
A, B = machine("a"), machine("b")


def asked_of(*shapes, closed=None, entries=(), **changes):
    ledger = open_ledger(shapes)
    for entry in entries:
        ledger = hold(ledger, entry)
    candidates = tuple(place for shape in shapes for place in places_on(shape, 20))
    wanted = Wanted(instance=NEW, phase=Phase.COLD, candidates=candidates, **changes)
    return plan(ledger, wanted, {}, may_evict=False, hosts=Hosts(closed=closed or {}))


def told(found, *refused) -> str:
    return why_no_room(found, named, machines=HERE.__getitem__, refused=refused)


def test_each_machine_is_named_with_its_figures_or_its_reason():
    held_there = entry_on(places_on(A, 14)[0], one("Q"))
    found = asked_of(A, B, closed={"b": "offline"}, entries=[held_there])
    differs = HostRefusal(host="c", diagnostic="checkpoint_mismatch", detail="the digest differs")
    labels = HostRefusal(host="d", diagnostic="selector_mismatch", detail="its labels do not match")

    assert told(found, differs, labels) == (
        "insufficient_device_memory: it fits on no machine (gpu-a: needs 20.0 GiB of gpu0 memory, "
        "10.0 GiB available (held: qwen 14.0 GiB ready); gpu-b: offline; gpu-c: the digest "
        "differs; gpu-d: its labels do not match); park or stop one of these models"
    )


def test_machines_that_may_not_be_used_now_are_no_lack_of_memory():
    found = asked_of(A, B, closed={"a": "draining", "b": "offline"})

    assert found.ineligible
    assert told(found) == (
        "host_ineligible: no machine that may run it can be used now "
        "(gpu-a: draining; gpu-b: offline)"
    )


def test_the_one_machine_that_may_not_be_used_is_named():
    assert told(asked_of(A, closed={"a": "revoked"})) == "host_ineligible: gpu-a: revoked"


def test_machines_that_cannot_run_it_are_named_where_there_is_no_other():
    refused = HostRefusal(host="c", diagnostic="checkpoint_mismatch", detail="the digest differs")

    assert told(asked_of(), refused) == "no_host_fits: gpu-c: the digest differs"


def test_the_count_is_said():
    mine = InstanceId(NEW.deployment, 5)
    found = asked_of(A, entries=[entry_on(places_on(A, 1)[0], mine)], max_per_host=1)

    assert told(found) == (
        "no_host_fits: 1 of its instances are there, as many as placement.max_per_host allows; "
        "stop one of these models"
    )


def test_a_device_that_is_not_shared_is_said():
    alone = entry_on(places_on(A, 1, exclusive=True)[0], one("Q"))

    assert told(asked_of(A, entries=[alone])) == (
        "device_conflict: gpu0 is not to be shared, and qwen runs on it; stop one of these models"
    )


def test_a_line_names_only_so_many_machines():
    many = [machine(f"m{n}") for n in range(11)]
    found = asked_of(*many, closed={shape.host: "offline" for shape in many})

    why = why_no_room(found, named)

    assert why.count("offline") == 8
    assert why.endswith("; 3 more machines)")


def test_a_machine_is_named_once_whatever_is_said_of_it():
    found = asked_of(A, B, closed={"a": "revoked", "b": "offline"})
    revoked = HostRefusal(host="a", diagnostic="revoked", detail="gpu-a: revoked")
    labels = HostRefusal(host="c", diagnostic="selector_mismatch", detail="gpu-c: other labels")

    assert told(found, revoked, labels) == (
        "host_ineligible: no machine that may run it can be used now "
        "(gpu-a: revoked; gpu-b: offline; gpu-c: other labels)"
    )

"""What is open on a host, under which generation, and for how many."""

from capyctl.dataplane.failures import UNTAKEN, Failure
from capyctl.dataplane.ingress_launches import CLOSED_MAX, OpenLaunches
from capyctl.domain.ids import LaunchId
from capyctl.domain.launches import Endpoint

WHO = LaunchId("01J00000000000000000000000")
ENGINE = Endpoint(host="127.0.0.1", port=8100, key="k", served_name="m")


def word(found: Endpoint | Failure) -> str | None:
    assert isinstance(found, Failure)
    assert found.ingress_word in UNTAKEN
    return found.ingress_word


def test_only_the_open_generation_is_found():
    launches = OpenLaunches()
    assert word(launches.find(WHO, 1)) == "unknown_launch"

    launches.open(WHO, ENGINE, generation=1)
    assert launches.find(WHO, 1) is ENGINE
    assert word(launches.find(WHO, 2)) == "stale_generation"

    launches.close(WHO)
    assert word(launches.find(WHO, 1)) == "closed"

    launches.open(WHO, ENGINE, generation=2)
    assert word(launches.find(WHO, 1)) == "stale_generation"
    assert launches.find(WHO, 2) is ENGINE


def test_closing_what_is_not_open_is_nothing():
    launches = OpenLaunches()
    launches.close(WHO)
    assert word(launches.find(WHO, 1)) == "unknown_launch"


def test_what_was_closed_long_ago_is_forgotten():
    launches = OpenLaunches()
    for number in range(CLOSED_MAX + 1):
        launches.open(LaunchId(f"L{number}"), ENGINE, generation=1)
        launches.close(LaunchId(f"L{number}"))
    assert word(launches.find(LaunchId("L0"), 1)) == "unknown_launch"
    assert word(launches.find(LaunchId("L1"), 1)) == "closed"


def test_requests_inside_are_counted_whatever_is_open():
    launches = OpenLaunches()
    for _ in range(2):
        launches.count_in(WHO)
    launches.close(WHO)
    launches.count_out(WHO)
    assert launches.in_flight(WHO) == 1
    launches.count_out(WHO)
    assert launches.in_flight(WHO) == 0

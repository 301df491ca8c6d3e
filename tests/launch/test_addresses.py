"""Ports: each to one engine, none that a stranger listens on, none again at once."""

import os
import socket

import pytest

from capyctl.launch.addresses import PortLeases, PortsExhausted, ephemeral_overlap

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
FIRST = 18_740 + 10 * WORKER
"""Below the ephemeral range, so that no outgoing connection is there by chance."""
LAST = FIRST + 4


def listener(port, address="127.0.0.1"):
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((address, port))
    found.listen()
    return found


def test_a_port_that_came_back_is_the_last_to_go_out_again():
    leases = PortLeases(FIRST, LAST)
    first = leases.lease()
    leases.release(first)

    assert [leases.lease() for _ in range(5)] == [FIRST + 1, FIRST + 2, FIRST + 3, FIRST + 4, FIRST]


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_a_stranger_listens_on_is_skipped_and_reported(address):
    leases = PortLeases(FIRST, LAST)
    with listener(FIRST, address):
        assert leases.is_taken(FIRST)
        assert leases.lease() == FIRST + 1
        assert leases.foreign == (FIRST,)
    assert not leases.is_taken(FIRST)


def test_a_full_range_is_named_with_its_figures():
    leases = PortLeases(FIRST, FIRST + 2)
    leases.reserve(FIRST)
    leases.lease()
    with listener(FIRST + 2):
        with pytest.raises(
            PortsExhausted, match=rf"{FIRST}-{FIRST + 2}.*have 2.*listen on 1"
        ) as told:
            leases.lease()
    assert told.value.foreign == (FIRST + 2,)
    assert leases.lease() == FIRST + 2


def test_a_reserved_port_is_not_leased():
    leases = PortLeases(FIRST, FIRST + 1)
    leases.reserve(FIRST)
    leases.reserve(FIRST)
    assert leases.lease() == FIRST + 1
    assert leases.leased == {FIRST, FIRST + 1}


def test_ten_thousand_failed_starts_use_nothing_up():
    leases = PortLeases(FIRST, LAST)
    for _ in range(10_000):
        leases.release(leases.lease())
    assert leases.leased == frozenset()


def test_a_connection_that_fades_away_does_not_count():
    leases = PortLeases(FIRST, FIRST)
    with listener(FIRST) as server, socket.create_connection(("127.0.0.1", FIRST)):
        server.accept()[0].close()
    assert leases.lease() == FIRST


@pytest.mark.parametrize(("first", "last"), [(2, 1), (0, 5), (1, 65_536)])
def test_a_range_that_is_none_is_refused(first, last):
    with pytest.raises(ValueError, match="port range"):
        PortLeases(first, last)


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (8100, 8199, None),
        (32000, 32767, None),
        (32700, 32768, "ip_local_reserved_ports=32700-32768"),
        (40000, 40063, "40000-40063 overlap 32768-60999"),
        (61000, 61010, None),
    ],
)
def test_a_range_that_outgoing_connections_use_is_told(tmp_path, first, last, said):
    path = tmp_path / "range"
    path.write_text("32768\t60999\n")

    found = ephemeral_overlap(first, last, path=path)

    assert (found is None) if said is None else (said in found)


def test_without_the_kernels_word_nothing_is_told(tmp_path):
    assert ephemeral_overlap(40000, 40063, path=tmp_path / "none") is None

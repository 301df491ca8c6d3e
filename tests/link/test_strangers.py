"""Whoever knocks and is none of ours: bounded in number, in time, and in what is said of it."""

from __future__ import annotations

import pytest
import trio

from capyctl.link.strangers import (
    SAID_COUNT_MAX,
    SAME_COUNT_MAX,
    STRANGERS_COUNT_MAX,
    Refusals,
)
from tests.link.test_websocket import open_site


@pytest.mark.slow
async def test_a_crowd_that_says_nothing_keeps_no_host_out(tmp_path):
    async with open_site(tmp_path) as site:
        crowd = [
            await trio.open_tcp_stream("127.0.0.1", site.port)
            for _ in range(STRANGERS_COUNT_MAX + 40)
        ]
        assert await crowd[0].receive_some() == b""
        site.start_host()
        with trio.fail_after(5):
            await site.events.wait("online")
        assert "connections wait" in (await site.said("link_connection_refused"))[0]
        for stream in crowd:
            await trio.aclose_forcefully(stream)

    told = [name for name, _ in site.logged if name == "link_connection_refused"]
    assert len(told) <= SAID_COUNT_MAX + 5


@pytest.mark.slow
async def test_a_refusal_names_the_address(tmp_path):
    async with open_site(tmp_path) as site:
        async with await trio.open_tcp_stream("127.0.0.1", site.port) as raw:
            await raw.send_all(b"GET / HTTP/1.1\r\n\r\n")
            await site.said("link_connection_refused")

    fields = next(f for name, f in site.logged if name == "link_connection_refused")
    assert fields["address"] == "127.0.0.1"


async def test_a_flood_of_refusals_is_told_in_few_words(autojump_clock):
    told: list[str] = []
    refusals = Refusals(lambda _, why: told.append(why))
    for number in range(1000):
        refusals.tell(f"10.0.0.{number}", "no TLS")
    await trio.sleep(5)
    refusals.tell("10.0.1.2", "no TLS")

    assert told[:-1] == ["no TLS"] * SAID_COUNT_MAX
    assert told[-1] == f"no TLS ({1000 - SAID_COUNT_MAX} more were refused before, " + (
        "from whatever address)"
    )


async def test_one_that_comes_for_ever_is_told_of_once_a_minute(autojump_clock):
    told: list[tuple[float, str]] = []
    refusals = Refusals(lambda _, why: told.append((trio.current_time(), why)))
    began_s = trio.current_time()
    for number in range(150):
        refusals.tell("10.0.0.1", "it belongs to another server")
        if number == 60:
            refusals.tell("10.0.0.1", "no TLS")
        await trio.sleep(1)

    times = [round(at_s - began_s) for at_s, _ in told]
    assert times == [0, 60, 60, 120]
    assert "(59 more were refused before" in told[1][1]
    assert "(59 more were refused before" in told[3][1]


async def test_what_is_remembered_of_refusals_is_bounded(autojump_clock):
    told: list[str] = []
    refusals = Refusals(lambda address, _: told.append(address))
    for number in range(SAME_COUNT_MAX + 1):
        refusals.tell(str(number), "no TLS")
        await trio.sleep(0.9)
    for address in ("1", "0"):
        refusals.tell(address, "no TLS")

    assert told[SAME_COUNT_MAX:] == [str(SAME_COUNT_MAX), "0"]

"""What goes on beside a server's doors."""

from __future__ import annotations

import io
import json

import pytest
import trio

from capyctl.daemon.serve_server import CERTIFICATE_EVERY_S, keep_certificate
from capyctl.link.certificates import read_shown
from capyctl.telemetry.log import Log
from tests.link.trust import DAY_MS, NAMES, authority, wall_ms


def said(out: io.StringIO) -> list[str]:
    return [json.loads(line)["event"] for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("off_days", [-3000, 3000])
async def test_a_clock_that_is_set_after_the_start_keeps_hosts_out_for_a_minute(
    tmp_path, autojump_clock, off_days
):
    """As of a machine that boots with no time and is told it by the network."""
    off_ms = off_days * DAY_MS
    ours, out = authority(tmp_path, wall_ms() + off_ms), io.StringIO()
    log = Log(out, role="server", clock_wall_ms=wall_ms, as_json=True)

    def is_valid() -> bool:
        shown = read_shown(ours.files.chain.read_text())
        return shown.begins_at_ms < wall_ms() < shown.expires_at_ms

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_certificate, ours, NAMES, lambda: wall_ms() + off_ms, log)
        await trio.sleep(10 * CERTIFICATE_EVERY_S)
        assert said(out) == []
        assert not is_valid()

        off_ms = 0
        await trio.sleep(CERTIFICATE_EVERY_S + 1)

        assert is_valid()
        await trio.sleep(10 * CERTIFICATE_EVERY_S)
        nursery.cancel_scope.cancel()
    assert said(out) == ["certificate_renewed"]
    assert CERTIFICATE_EVERY_S <= 60


async def test_a_disk_that_takes_no_certificate_is_said_once(tmp_path, autojump_clock):
    ours, out = authority(tmp_path, wall_ms() - 200 * DAY_MS), io.StringIO()
    log = Log(out, role="server", clock_wall_ms=wall_ms, as_json=True)
    in_the_way = ours.files.chain.with_name("server.pem.new")
    in_the_way.mkdir()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_certificate, ours, NAMES, wall_ms, log)
        await trio.sleep(10 * CERTIFICATE_EVERY_S)
        in_the_way.rmdir()
        await trio.sleep(2 * CERTIFICATE_EVERY_S)
        nursery.cancel_scope.cancel()

    assert said(out) == ["certificate_not_renewed", "certificate_renewed"]

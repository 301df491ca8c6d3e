"""The lines of a server's log about its hosts."""

from __future__ import annotations

import io
import json

import attrs

from capyctl.control.directory import Directory
from capyctl.daemon.host_news import HostNews
from capyctl.domain.hosts import HostRecord, HostState
from capyctl.domain.ids import HostId
from capyctl.telemetry.log import Log

A = HostId("01A")


def test_each_change_of_a_host_is_said_once_by_name():
    out = io.StringIO()
    directory = Directory()
    directory.hosts[A] = HostRecord(id=A, name="box")
    log = Log(out, role="server", clock_wall_ms=lambda: 0, as_json=True)
    news = HostNews(directory, log, silent_s=5.0, lost_s=30.0)

    for tell in (news.online, news.online, news.suspended, news.lost, news.lost, news.online):
        tell(A)
    directory.hosts[A] = attrs.evolve(directory.hosts[A], state=HostState.REVOKED)
    news.lost(A)

    said = [json.loads(line) for line in out.getvalue().splitlines()]
    events = ["host_online", "host_suspended", "host_lost", "host_online", "host_revoked"]
    assert [line["event"] for line in said] == events
    assert all(line["fields"]["name"] == "box" for line in said)
    assert "nothing was heard for 5 s" in said[1]["fields"]["message"]
    assert "for 30 s: what runs there is uncertain" in said[2]["fields"]["message"]
    assert said[2]["level"] == "warning"

"""The bounds of a server's queues follow its hosts."""

from __future__ import annotations

from functools import partial

import attrs
import trio

from capyctl.control.directory import Directory
from capyctl.daemon.tightest import EVERY_S, keep_tightest, tightest
from capyctl.domain.devices import MachineShape
from capyctl.domain.hosts import HostPublication, HostRecord, HostState, QueueLimits
from capyctl.domain.ids import DeploymentId, HostId


def record(name, **limits):
    shape = MachineShape(host=HostId(name), gpus=(), domains=())
    publication = HostPublication(
        shape=shape, version="0.1.0", models_root="/m", queue=QueueLimits(**limits)
    )
    return HostRecord(id=HostId(name), name=name, publication=publication)


def test_each_bound_is_the_tightest_of_all():
    a = record("a", running_per_deployment_max=4, request_deadline_s=300.0)
    b = record("b", pending_total_max=8, running_per_deployment_max=16)
    never = HostRecord(id=HostId("c"), name="c")
    revoked = attrs.evolve(record("d", pending_total_max=1), state=HostState.REVOKED)

    found = tightest([a, b, never, revoked])

    assert found.running_per_deployment_max == 4
    assert found.pending_total_max == 8
    assert found.request_deadline_s == 300
    assert found.pending_per_deployment_max == QueueLimits().pending_per_deployment_max


def test_without_hosts_they_are_the_defaults_and_the_servers_own_word():
    assert tightest([]) == QueueLimits()
    assert tightest([], bytes_max=5).buffered_bytes_max == 5


async def test_a_change_reaches_what_is_there_and_what_comes(autojump_clock):
    directory = Directory()
    early = directory.admission(DeploymentId("early"))
    told = []
    keep = partial(
        keep_tightest,
        directory,
        bytes_max=None,
        now_s=trio.current_time,
        changed=told.append,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep)
        await trio.sleep(EVERY_S * 1.5)
        directory.load([record("a", running_per_deployment_max=2, pending_total_max=3)])
        await trio.sleep(EVERY_S)
        nursery.cancel_scope.cancel()

    assert early.running_max == 2
    assert directory.admission(DeploymentId("late")).running_max == 2
    assert directory.bounds.total_max == 3
    assert [one.running_per_deployment_max for one in told] == [32, 2]

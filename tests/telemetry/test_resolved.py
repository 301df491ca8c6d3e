"""A deployment's machines in the snapshot, with the release that each of them runs."""

from __future__ import annotations

import json

import attrs
import pytest

from capyctl import __version__
from capyctl.contracts.store import Change, Committed, Stored
from capyctl.domain.checkpoints import CheckpointRecord
from capyctl.machines.host_files import hosts_looked_at
from capyctl.telemetry.fragments import Fragments
from tests.machines.machines_of import A, B, C, fit, hosts, publication, record
from tests.machines.making import deployment

OURS = __version__
MAJOR, MINOR, _ = OURS.split(".", 2)
NEWER = f"{MAJOR}.{int(MINOR) + 1}.0"


def released(host, version):
    return record(host, publication=publication(host, version=version))


def placed(known):
    begun = deployment(resolved=None, checkpoint=CheckpointRecord())
    return hosts_looked_at(begun, known, lambda host: lambda facts: fit(host))


def opened(known, **changes):
    stored = Stored(
        incarnation="01",
        session_epoch=1,
        last_seq=0,
        deployments=(placed(known),),
        instances=(),
        operations=(),
    )
    return Fragments.from_store(attrs.evolve(stored, **changes))


def rows(fragments):
    (found,) = json.loads(fragments.snapshot())["deployments"]
    return {row["host_id"]: row for row in found["hosts"]}


def test_each_machine_has_its_release_and_what_goes_with_it():
    known = hosts(released(A, OURS), released(B, NEWER), released(C, "nonsense"))

    found = rows(opened(known, hosts=tuple(known.values())))

    assert found[A] == {
        "host_id": A,
        "outcome": "resolved",
        "binary_version": OURS,
        "compatibility": "supported",
    }
    assert found[B]["compatibility"] == "server_upgrade_required"
    assert "upgrade the server first" in found[B]["compatibility_reason"]
    assert found[C]["compatibility"] == "upgrade_required"


def test_a_machine_that_is_upgraded_is_shown_so_at_once():
    known = hosts(released(A, NEWER))
    fragments = opened(known, hosts=tuple(known.values()))
    assert rows(fragments)[A]["binary_version"] == NEWER

    fragments.apply((Committed(change=Change(puts=(released(A, OURS),)), events=()),))

    assert rows(fragments)[A]["binary_version"] == OURS
    assert "compatibility_reason" not in rows(fragments)[A]


@pytest.mark.parametrize("known", [(), (record(A, publication=None),)])
def test_what_is_not_known_is_left_out(known):
    fragments = opened(hosts(record(A)), hosts=known)

    assert rows(fragments)[A] == {"host_id": A, "outcome": "resolved"}


def test_the_machine_of_a_standalone_role_has_no_release():
    fragments = opened({}, deployments=(deployment(),))

    (row,) = rows(fragments).values()
    assert set(row) == {"host_id", "outcome"}

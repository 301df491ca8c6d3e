"""Changes written together come to the same as each written by itself."""

from __future__ import annotations

import sqlite3

import attrs
import hypothesis
import pytest
from hypothesis import strategies as st

from capyctl.contracts.store import Change, ReceiptTaken
from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.machines.instance import Instance
from capyctl.store.batch import Batch, encode, receipt_keys
from capyctl.store.migrate import migrate
from capyctl.store.rows import find_receipts, write_batch
from tests.store.making import certificate, event, host, invitation, operation, receipt

A, B = DeploymentId("A"), DeploymentId("B")

changes = st.builds(
    Change,
    puts=st.lists(
        st.builds(operation, st.integers(0, 3))
        | st.builds(host, st.integers(0, 3))
        | st.builds(invitation, st.integers(0, 3))
        | st.builds(certificate, st.integers(0, 3))
        | st.builds(
            lambda d, index, attempts: Instance(id=InstanceId(d, index), attempts_count=attempts),
            st.sampled_from([A, B]),
            st.integers(0, 1),
            st.integers(0, 9),
        ),
        max_size=3,
    ).map(tuple),
    deleted=st.sampled_from([None, None, A, B]),
    receipt=st.none() | st.builds(receipt, st.sampled_from("kl"), st.sampled_from(["1", "2"])),
    events=st.lists(st.builds(event, st.integers(0, 3)), max_size=2).map(tuple),
)


def empty_database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
    return connection


def write(connection: sqlite3.Connection, together: list[Change], next_seq: int) -> list:
    encoded = [encode(change) for change in together]
    stored = find_receipts(connection, receipt_keys(encoded))
    batch = Batch(stored=stored, next_seq=next_seq, recorded_at_ms=1)
    outcomes = [batch.add(one) for one in encoded]
    write_batch(connection, batch)
    return [one.receipt if isinstance(one, ReceiptTaken) else one for one in outcomes]


def dump(connection: sqlite3.Connection) -> list[str]:
    lines = list(connection.iterdump())
    connection.close()
    return lines


@pytest.mark.slow
@hypothesis.given(st.lists(changes, max_size=8))
@hypothesis.settings(max_examples=60)
def test_together_is_as_one_by_one(several):
    together, one_by_one = empty_database(), empty_database()

    outcomes = write(together, several, 1)
    expected, next_seq = [], 1
    for change in several:
        expected += write(one_by_one, [change], next_seq)
        next_seq += len(getattr(expected[-1], "events", ()))

    assert outcomes == expected
    assert dump(together) == dump(one_by_one)


def test_a_delete_takes_the_instances_of_its_deployment_and_no_others():
    puts = tuple(Instance(id=InstanceId(d, n)) for d in (A, B) for n in (0, 1))
    connection = empty_database()

    write(connection, [Change(puts=(*puts, operation(1)), receipt=receipt("k"))], 1)
    write(connection, [Change(deleted=A)], 1)

    left = connection.execute("SELECT deployment, number FROM instances").fetchall()
    assert left == [("B", 0), ("B", 1)]
    assert connection.execute("SELECT count(*) FROM operations").fetchone() == (1,)
    assert connection.execute("SELECT count(*) FROM receipts").fetchone() == (1,)


def test_what_is_put_after_a_delete_stays():
    one = Instance(id=InstanceId(A, 0))
    connection = empty_database()

    write(connection, [Change(puts=(one,)), Change(deleted=A), Change(puts=(one,))], 1)

    assert connection.execute("SELECT count(*) FROM instances").fetchone() == (1,)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 63, 64, 65, 200])
def test_any_number_of_rows_is_written(count):
    connection = empty_database()

    write(connection, [Change(puts=tuple(operation(n) for n in range(count)))], 1)

    assert connection.execute("SELECT count(*) FROM operations").fetchone() == (count,)


def test_an_empty_change_is_no_reason_to_write():
    batch = Batch(stored={("create", "k"): receipt("k")}, next_seq=1, recorded_at_ms=1)
    batch.add(encode(Change()))
    batch.add(encode(attrs.evolve(Change(events=(event(1),)), receipt=receipt("k"))))

    assert batch.empty
    batch.add(encode(Change(events=(event(1),))))
    assert not batch.empty

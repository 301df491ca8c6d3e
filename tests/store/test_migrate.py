"""Forward in one transaction; a newer database keeps every byte."""

from __future__ import annotations

import os
import sqlite3

import attrs
import pytest

from capyctl.contracts.store import Change
from capyctl.store.batch import OPERATIONS
from capyctl.store.errors import StoreCorrupt, StoreFromNewerVersion
from capyctl.store.migrate import migrate, refuse_newer
from capyctl.store.schema import STEPS
from tests.store.making import (
    accepted,
    certificate,
    database,
    host,
    invitation,
    noted,
    opened,
    operation,
)


def add_notes(connection):
    connection.execute("CREATE TABLE notes (id TEXT)")


def fill_notes(connection):
    connection.execute("INSERT INTO notes SELECT id FROM operations")


def failing(connection):
    connection.execute("CREATE TABLE half (id TEXT)")
    raise sqlite3.OperationalError("disk is full")


def rows(path, statement):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


async def test_an_older_database_is_brought_forward_with_what_it_holds(tmp_path):
    async with opened(tmp_path) as store:
        await store.commit(accepted(1))
        before = await store.load()

    async with opened(tmp_path, steps=(*STEPS, add_notes, fill_notes)) as store:
        after = await store.load()

    assert (after.operations, after.incarnation) == (before.operations, before.incarnation)
    assert rows(database(tmp_path), "PRAGMA user_version") == [(len(STEPS) + 2,)]
    assert rows(database(tmp_path), "SELECT id FROM notes") == [(operation(1).id,)]


async def test_a_database_of_one_machine_learns_of_others(tmp_path):
    """Version 1 is what a standalone daemon of the first release wrote."""
    connection = sqlite3.connect(database(tmp_path), isolation_level=None)
    migrate(connection, STEPS[:1])
    connection.execute("UPDATE meta SET last_seq = 7")
    connection.close()

    async with opened(tmp_path) as store:
        await store.commit(Change(puts=(host(1), invitation(1), certificate(1))))
        stored = await store.load()

    assert (stored.hosts, stored.last_seq) == ((host(1),), 7)


def test_older_operations_learn_whose_they_are(tmp_path):
    record = OPERATIONS.to_text(attrs.evolve(operation(1), instance=2))
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, STEPS[:2])
    connection.execute("INSERT INTO operations VALUES ('1', 1, ?)", (record,))

    migrate(connection)

    found = connection.execute("SELECT * FROM operations").fetchall()
    connection.close()
    assert found == [("1", 1, record, operation(1).deployment, 2)]


async def test_only_missing_steps_run(tmp_path):
    async with opened(tmp_path, steps=(*STEPS, add_notes)):
        pass

    async with opened(tmp_path, steps=(*STEPS, add_notes, fill_notes)) as store:
        assert (await store.load()).session_epoch == 2


def test_a_step_that_fails_leaves_the_older_version(tmp_path):
    connection = sqlite3.connect(database(tmp_path), isolation_level=None)
    migrate(connection)
    before = list(connection.iterdump())

    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, (*STEPS, add_notes, failing))

    assert list(connection.iterdump()) == before
    assert connection.execute("PRAGMA user_version").fetchone() == (len(STEPS),)
    connection.close()


@pytest.mark.parametrize("crashed", [False, True])
async def test_a_newer_database_is_refused_untouched(tmp_path, crashed):
    """Also when the newer version is in the log only, as after a crash."""
    async with opened(tmp_path) as store:
        await store.commit(noted(1))
    newer = f"PRAGMA user_version = {len(STEPS) + 1}"
    if crashed:
        run_and_crash(database(tmp_path), newer)
    else:
        rows(database(tmp_path), newer)
    (tmp_path / "srv.sqlite3-shm").unlink(missing_ok=True)
    before = contents(tmp_path)

    with pytest.raises(StoreFromNewerVersion) as newer_version:
        async with opened(tmp_path):
            pass

    assert contents(tmp_path) == before
    assert newer_version.value.code == "store_from_newer_version"
    assert newer_version.value.found_version == len(STEPS) + 1


def test_another_programs_database_is_refused(tmp_path):
    rows(database(tmp_path), "CREATE TABLE t (x)")

    with pytest.raises(StoreCorrupt, match="application id"):
        refuse_newer(database(tmp_path))


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run_and_crash(path, statement) -> None:
    child = os.fork()
    if child == 0:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(statement)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert path.with_name(path.name + "-wal").stat().st_size > 0

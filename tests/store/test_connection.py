"""What is refused at open: open folders, other owners of the file, damage."""

from __future__ import annotations

import os
import sqlite3
import stat

import pytest

from capyctl.store.errors import StoreCorrupt, StoreInUse, StoreLost, StoreUnusable
from tests.store.making import accepted, database, noted, opened


async def refused(folder, error: type[StoreUnusable]) -> str:
    with pytest.raises(error) as refusal:
        async with opened(folder) as store:
            await store.load()
    return str(refusal.value)


async def test_every_file_is_the_owners_alone(tmp_path):
    was = os.umask(0)
    try:
        async with opened(tmp_path) as store:
            await store.commit(noted(1))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(was)

    assert modes == dict.fromkeys(
        (
            "srv.incarnation.1",
            "srv.lock",
            "srv.sqlite3",
            "srv.sqlite3-shm",
            "srv.sqlite3-wal",
        ),
        0o600,
    )


async def test_a_restored_file_loses_wider_rights(tmp_path):
    async with opened(tmp_path):
        pass
    database(tmp_path).chmod(0o644)
    async with opened(tmp_path) as store:
        assert stat.S_IMODE(database(tmp_path).stat().st_mode) == 0o600
        assert store.put_back is None


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
async def test_a_folder_that_others_may_enter_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)

    assert f"{mode:04o}" in await refused(tmp_path, StoreUnusable)
    assert list(tmp_path.iterdir()) == []


async def test_a_missing_folder_is_refused(tmp_path):
    assert "cannot open the folder" in await refused(tmp_path / "none", StoreUnusable)


async def test_a_second_store_on_the_same_file_is_refused(tmp_path):
    async with opened(tmp_path) as store:
        await refused(tmp_path, StoreInUse)

        assert (await store.commit(noted(1))).events[0].seq == 1


async def test_a_file_that_is_no_database_is_refused_with_advice(tmp_path):
    database(tmp_path).write_bytes(b"not a database" * 100)

    message = await refused(tmp_path, StoreCorrupt)
    assert str(database(tmp_path)) in message
    assert "backup" in message


@pytest.mark.parametrize("table", ["meta", "events", "deployments", "operations"])
async def test_a_damaged_page_is_found_before_anything_is_built_on_it(tmp_path, table):
    async with opened(tmp_path) as store:
        await store.commit(accepted(1))
    connection = sqlite3.connect(database(tmp_path))
    (page,) = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
    ).fetchone()
    connection.close()
    with database(tmp_path).open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096)

    message = await refused(tmp_path, StoreCorrupt)
    assert str(database(tmp_path)) in message
    assert "backup" in message


async def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    database(tmp_path).mkdir()

    assert f"{database(tmp_path)} is a directory" in await refused(tmp_path, StoreUnusable)


@pytest.mark.parametrize("way", ["emptied", "removed"])
async def test_a_database_that_was_there_and_is_not_is_refused(tmp_path, way):
    """Nothing is not a new beginning: the engines of what was in it may still run."""
    async with opened(tmp_path) as store:
        await store.commit(noted(1))
    if way == "emptied":
        database(tmp_path).write_bytes(b"")
    else:
        database(tmp_path).unlink()

    assert "srv.incarnation" in await refused(tmp_path, StoreLost)


async def test_without_its_witness_a_missing_database_is_a_new_one(tmp_path):
    async with opened(tmp_path) as store:
        await store.commit(noted(1))
    for path in tmp_path.iterdir():
        path.unlink()

    async with opened(tmp_path) as store:
        assert (await store.load()).deployments == ()

"""A database that was put back becomes a new incarnation; one that lived on does not."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from capyctl.store.lineage import WITNESSES, Found, Remembered, why_put_back
from tests.store.crashing import CRASHED
from tests.store.making import database, noted, opened

FOUND = Found(file_identity="f", log_present=False, witnesses=frozenset({"1:5"}))
REMEMBERED = Remembered(file_identity="f", witness="1:5", closed=True)


@pytest.mark.parametrize(
    ("found", "remembered", "reason"),
    [
        (FOUND, REMEMBERED, None),
        (attrs.evolve(FOUND, witnesses=frozenset({"1:5", "2:6"})), REMEMBERED, None),
        (attrs.evolve(FOUND, witnesses=frozenset()), REMEMBERED, "witness"),
        (attrs.evolve(FOUND, witnesses=frozenset({"1:6"})), REMEMBERED, "witness"),
        (FOUND, attrs.evolve(REMEMBERED, witness=""), "witness"),
        (attrs.evolve(FOUND, file_identity="g"), REMEMBERED, "the file was replaced"),
        (FOUND, attrs.evolve(REMEMBERED, closed=False), "its log is gone"),
        (attrs.evolve(FOUND, log_present=True), attrs.evolve(REMEMBERED, closed=False), None),
        # Closed, and killed before SQLite took its log away.
        (attrs.evolve(FOUND, log_present=True), REMEMBERED, None),
    ],
)
def test_each_case(found, remembered, reason):
    why = why_put_back(found, remembered)

    assert (why is None) == (reason is None)
    assert reason is None or reason in why


async def written(folder, count: int = 1) -> str:
    """Some history; gives the incarnation."""
    async with opened(folder) as store:
        for number in range(count):
            await store.commit(noted(number))
        return store.incarnation


async def found_again(folder) -> tuple[str, str | None]:
    async with opened(folder) as store:
        return store.incarnation, store.put_back


async def test_a_normal_start_is_the_same_history(tmp_path):
    incarnation = await written(tmp_path)

    assert await found_again(tmp_path) == (incarnation, None)
    assert await found_again(tmp_path) == (incarnation, None)


async def test_a_database_copied_elsewhere_is_new(tmp_path):
    incarnation = await written(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    shutil.copy2(database(tmp_path), elsewhere)

    other, why = await found_again(elsewhere)
    assert other != incarnation
    assert "witness" in why
    assert (await found_again(tmp_path))[0] == incarnation
    assert (await found_again(elsewhere)) == (other, None), "only once"


async def test_a_copy_of_the_whole_folder_is_new(tmp_path):
    incarnation = await written(tmp_path / made(tmp_path, "a"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    other, why = await found_again(tmp_path / "b")
    assert other != incarnation
    assert why is not None


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("with_witness", [True, False])
@pytest.mark.parametrize("online", [True, False])
async def test_an_older_copy_put_back_is_new(tmp_path, in_place, with_witness, online):
    """Whether copied over the file or moved there; with or without what lies beside it."""
    folder, backup = tmp_path / made(tmp_path, "state"), tmp_path / made(tmp_path, "backup")
    async with opened(folder) as store:
        await store.commit(noted(1))
        if online:
            back_up_online(folder, backup)
        incarnation = store.incarnation
    if not online:
        shutil.copy2(database(folder), backup)
    for path in witnesses(folder):
        shutil.copy2(path, backup)
    await written(folder, 5)

    for name in [path.name for path in backup.iterdir()] if with_witness else ["srv.sqlite3"]:
        if in_place:
            shutil.copy2(backup / name, folder / name)
        else:
            (backup / name).rename(folder / name)

    async with opened(folder) as store:
        assert store.put_back is not None
        assert store.incarnation != incarnation
        assert (await store.commit(noted(9))).events[0].seq == 2, "its own history goes on"
        other = store.incarnation
    assert await found_again(folder) == (other, None)


@pytest.mark.slow
async def test_an_online_backup_of_this_session_put_back_after_a_crash_is_new(tmp_path):
    """As it is told to be done: the log of the crashed one goes away with it."""
    incarnation = await written(tmp_path)
    crash(tmp_path, "crash_in_a_session", os.fspath(tmp_path / "kept"))
    shutil.copy2(tmp_path / "kept", database(tmp_path))
    for ending in ("-wal", "-shm"):
        database(tmp_path).with_name("srv.sqlite3" + ending).unlink()

    other, why = await found_again(tmp_path)
    assert other != incarnation
    assert "log is gone" in why


@pytest.mark.slow
async def test_a_crash_is_the_same_history(tmp_path):
    incarnation = await written(tmp_path)
    crash(tmp_path, "crash_in_a_session", "")

    assert await found_again(tmp_path) == (incarnation, None)


async def test_removing_the_witness_asks_for_a_new_incarnation(tmp_path):
    incarnation = await written(tmp_path)
    (witness,) = witnesses(tmp_path)
    witness.unlink()

    other, why = await found_again(tmp_path)
    assert other != incarnation
    assert "witness" in why


@pytest.mark.slow
@pytest.mark.parametrize("last_call", ["make_witness", "write_meta", "drop_witnesses_but"])
@pytest.mark.parametrize("closing", [True, False])
async def test_a_crash_at_any_step_of_opening_or_closing_is_the_same_history(
    tmp_path, last_call, closing
):
    incarnation = await written(tmp_path)
    crash(tmp_path, "crash_in_a_step", str(closing), last_call)

    assert await found_again(tmp_path) == (incarnation, None)
    assert len(witnesses(tmp_path)) == 1


def witnesses(folder) -> list[Path]:
    return [path for name in WITNESSES if (path := folder / name).exists()]


def made(folder, name: str) -> str:
    (folder / name).mkdir(mode=0o700)
    return name


def back_up_online(folder, backup) -> None:
    source, target = sqlite3.connect(database(folder)), sqlite3.connect(database(backup))
    source.backup(target)
    source.close()
    target.close()


def crash(folder, *how: str) -> None:
    child = [sys.executable, "-m", "tests.store.crashing", os.fspath(folder), *how]
    assert subprocess.run(child, timeout=60).returncode == CRASHED

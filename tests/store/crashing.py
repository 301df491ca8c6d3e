"""Child programs that use a store and die: ``python -m tests.store.crashing FOLDER HOW …``."""

from __future__ import annotations

import os
import resource
import sqlite3
import sys
from pathlib import Path

import trio

from capyctl.contracts.store import StoreBroken
from capyctl.store import connection, lineage
from tests.store.making import accepted, noted, opened, receipt

CRASHED = 77
"""Exit status of a child that came to where it was to die."""
CALLERS_COUNT = 16


async def crash_in_a_session(folder: Path, kept: str) -> None:
    """Commit, keep an online backup under the name ``kept`` if it is one, commit again, die."""
    async with opened(folder) as store:
        await store.commit(noted(1))
        if kept:
            source, target = sqlite3.connect(folder / "srv.sqlite3"), sqlite3.connect(kept)
            source.backup(target)
            target.close()
        await store.commit(noted(2))
        os._exit(CRASHED)


async def crash_in_a_step(folder: Path, closing: str, last_call: str) -> None:
    """Die right after one call of the open or of the close."""

    def die_after() -> None:
        owner = connection if last_call == "write_meta" else lineage
        original = getattr(owner, last_call)

        def dying(*args, **named):
            original(*args, **named)
            os._exit(CRASHED)

        setattr(owner, last_call, dying)

    if closing == "False":
        die_after()
    async with opened(folder) as store:
        await store.commit(noted(1))
        die_after()


async def commit_for_ever(folder: Path, run: str) -> None:
    """Commit from many tasks; print the number of each change that was acknowledged."""

    async def caller(store, first: int) -> None:
        for number in range(first, first + 1_000_000, CALLERS_COUNT):
            await store.commit(accepted(number))
            os.write(1, b"%d\n" % number)

    async with opened(folder) as store:
        async with trio.open_nursery() as nursery:
            for index in range(CALLERS_COUNT):
                nursery.start_soon(caller, store, int(run) * 10_000_000 + index)


async def fill_the_disk(folder: Path) -> None:
    """Commit until the file may not grow any more; then read, with room again; close in order."""
    async with opened(folder) as store:
        limit_bytes = (folder / "srv.sqlite3-wal").stat().st_size + 1_000_000
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
        done_count = 0
        try:
            while done_count < 10_000:
                await store.commit(accepted(done_count))
                done_count += 1
        except StoreBroken:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert f"the disk that holds {folder / 'srv.sqlite3'} failed" in str(store.why_broken)
        last = done_count - 1
        assert await store.find_receipt("create", str(last)) == receipt(str(last), str(last))
        print(done_count, flush=True)
    sys.exit(CRASHED)


if __name__ == "__main__":
    trio.run(globals()[sys.argv[2]], Path(sys.argv[1]), *sys.argv[3:])

"""Finds every launch of one state directory by what runs, and ends those that nobody knows.

A launch shows in two places, neither of which is a file that can be lost: the command line of
its log relay, and the environment of its processes.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path

import attrs
import trio

from capyctl.domain.identity import ProcessIdentity
from capyctl.domain.ids import LaunchId
from capyctl.launch.identity import boot_id
from capyctl.launch.kin import take_census

MARK = "CAPYCTL_LAUNCH"
"""Variable of every engine: the state directory, a bar, and the launch's id."""
FILE_BYTES_MAX = 1 << 20
_LABEL = re.compile(rb"([0-9]{1,10}):([0-9]{1,20})")

End = Callable[[ProcessIdentity], Awaitable[bool]]


def mark_of(state_dir: Path, launch: LaunchId) -> str:
    """The value of MARK."""
    return f"{state_dir}|{launch}"


def find_launches(state_dir: Path) -> dict[LaunchId, frozenset[ProcessIdentity]]:
    """The processes by which each launch of this state directory is to be ended.

    Its leader, where that is known; workers that outlived theirs. Blocks: reads two small files
    of each process.
    """
    found: dict[LaunchId, set[ProcessIdentity]] = {}
    census = take_census(0)
    for pid, sight in census.items():
        launch = _marked(pid, state_dir)
        if launch is not None:
            # Every launch has its session to itself; a number that was given out again is not ours.
            leads = sight.session in census and _marked(sight.session, state_dir) == launch
            leader = census[sight.session] if leads else sight
            found.setdefault(launch, set()).add(leader.identity)
        relayed = _relayed(pid, state_dir)
        if relayed is not None:
            found.setdefault(relayed[0], set()).add(relayed[1])
    return {launch: frozenset(leaders) for launch, leaders in found.items()}


@attrs.frozen(kw_only=True)
class LaunchStrays:
    """Implements `contracts.hosts.Strays` for the launches of one state directory."""

    state_dir: Path
    end: End
    """Ends a launch's processes by its leader; whether they are proved gone."""
    again_s: float = 5.0
    """Between two tries of an end that is not proved."""

    async def end_others(self, keep: Collection[LaunchId]) -> frozenset[LaunchId]:
        """See the contract. An end that is not proved is tried again, for as long as it takes."""
        found = await trio.to_thread.run_sync(find_launches, self.state_dir)
        others = {launch: leaders for launch, leaders in found.items() if launch not in keep}
        async with trio.open_nursery() as nursery:
            for leaders in others.values():
                for leader in leaders:
                    nursery.start_soon(self._end_one, leader)
        return frozenset(others)

    async def _end_one(self, leader: ProcessIdentity) -> None:
        while True:
            if await self.end(leader):
                return
            await trio.sleep(self.again_s)


def _marked(pid: int, state_dir: Path) -> LaunchId | None:
    prefix = f"{MARK}={state_dir}|".encode()
    for entry in _split(pid, "environ"):
        if entry.startswith(prefix):
            return LaunchId(entry[len(prefix) :].decode(errors="replace"))
    return None


def _relayed(pid: int, state_dir: Path) -> tuple[LaunchId, ProcessIdentity] | None:
    """The launch that this process relays the output of, and its leader."""
    words = list(_split(pid, "cmdline"))
    folder = f"{state_dir}/logs/".encode()
    if not any(word.endswith(b"log_relay.py") for word in words):
        return None
    logs = [word for word in words if word.startswith(folder) and word.endswith(b".log")]
    labels = [found for word in words if (found := _LABEL.fullmatch(word))]
    if len(logs) != 1 or len(labels) != 1:
        return None
    leader = ProcessIdentity(
        pid=int(labels[0][1]), boot_id=boot_id(), start_ticks=int(labels[0][2])
    )
    return LaunchId(Path(logs[0].decode(errors="replace")).stem), leader


def _split(pid: int, name: str) -> Iterator[bytes]:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            yield from file.read(FILE_BYTES_MAX).split(b"\0")
    except OSError:
        return

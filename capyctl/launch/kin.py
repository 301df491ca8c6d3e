"""Which processes belong to one launch: its group and session, offspring and log writers."""

from __future__ import annotations

import contextlib
import enum
import os
import signal
from collections.abc import Mapping

import attrs
import trio

from capyctl.domain.identity import ProcessIdentity
from capyctl.launch.identity import (
    Sight,
    Unreadable,
    boot_id,
    is_gone,
    is_running,
    look,
    signal_process,
)

Census = Mapping[int, Sight]


@attrs.frozen(kw_only=True)
class Left:
    """What is not yet shown to be gone."""

    known: tuple[ProcessIdentity, ...] = ()
    """Proven members of the launch."""
    unproven_count: int = 0
    """Processes in a group of that number which cannot be told from a stranger's."""

    @property
    def nothing(self) -> bool:
        return not self.known and not self.unproven_count


class Kin:
    """The processes of one launch, as they become known while it lives.

    A member stays known until it is gone, also when it left the group. Everything is found
    by proof: in the group while the group is provably the leader's, as the child of a
    member, or as a writer of the pipe that the launch's log relay reads.
    """

    def __init__(self, leader: ProcessIdentity, *, relay: ProcessIdentity | None = None) -> None:
        self.leader = leader
        self.relay = relay
        self._known: dict[int, ProcessIdentity] = {leader.pid: leader}

    async def record(self) -> None:
        """Take in every member alive now. Looks at the whole of ``/proc``, in a thread."""
        known = dict(self._known)
        found = await trio.to_thread.run_sync(discover, self.leader, self.relay, known)
        self._merge(found)

    def record_now(self) -> None:
        """As :meth:`record`, holding the caller up for some milliseconds."""
        self._merge(discover(self.leader, self.relay, dict(self._known)))

    def _merge(self, found: Mapping[int, ProcessIdentity]) -> None:
        gone = [pid for pid, who in self._known.items() if is_gone(who)]
        for pid in gone:
            del self._known[pid]
        self._known.update(found)

    def members(self) -> dict[int, ProcessIdentity]:
        """Members known and not gone, the leader included."""
        return {pid: who for pid, who in self._known.items() if not is_gone(who)}

    def left(self) -> Left:
        """What is alive now, of the known and of the group. Cheap; finds no new kin outside."""
        if self.leader.boot_id != boot_id():
            return Left()
        known = tuple(self.members().values())
        if _holder(self.leader) is _Holder.ANOTHER:
            return Left(known=known)  # the pid was given out again, so our group had emptied
        return Left(known=known, unproven_count=_others_in_group(self.leader.pid, known))

    def signal(self, number: signal.Signals) -> None:
        """Signal the group, if it is provably the leader's, and every member outside it.

        SIGKILL goes to each member in person as well. With the leader gone, all are
        signalled in person, by identity.
        """
        members = self.members()
        group = self.leader.pid
        whole = _holder(self.leader) is _Holder.LEADER
        if whole:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        for who in members.values():
            if whole and number != signal.SIGKILL and _group_of(who.pid) == group:
                continue  # it was told already, and a polite process is told once
            signal_process(who, number)


class _Holder(enum.Enum):
    """Who has the leader's pid now; a zombie leader still has it."""

    LEADER = "leader"
    ANOTHER = "another"
    NOBODY = "nobody"
    UNKNOWN = "unknown"


def _holder(leader: ProcessIdentity) -> _Holder:
    try:
        sight = look(leader.pid)
    except Unreadable:
        return _Holder.UNKNOWN
    if sight is None:
        return _Holder.NOBODY
    return _Holder.LEADER if sight.identity == leader else _Holder.ANOTHER


def discover(
    leader: ProcessIdentity,
    relay: ProcessIdentity | None,
    known: Mapping[int, ProcessIdentity],
) -> dict[int, ProcessIdentity]:
    """All living members, from one pass over ``/proc``. Blocks; milliseconds.

    Each proof is checked again after the pass, so that it held while the pass was made.
    """
    if leader.boot_id != boot_id():
        return {}
    census = take_census(leader.start_ticks)
    found = {
        pid: who for pid, who in known.items() if pid in census and census[pid].identity == who
    }
    found |= _log_writers(census, relay)
    if group_is_ours(leader, found):
        found |= {
            pid: sight.identity
            for pid, sight in census.items()
            if leader.pid in (sight.group, sight.session)
        }
    _add_offspring(census, found)
    return found


def take_census(start_ticks_min: int) -> dict[int, Sight]:
    """Every process that runs now and started no earlier; ourselves and the hidden left out."""
    census: dict[int, Sight] = {}
    ourselves = os.getpid()
    for pid in running_pids():
        try:
            sight = look(pid)
        except Unreadable:
            continue
        if sight is None or sight.ended or pid == ourselves:
            continue
        if sight.identity.start_ticks >= start_ticks_min:
            census[pid] = sight
    return census


def running_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def group_is_ours(leader: ProcessIdentity, members: Mapping[int, ProcessIdentity]) -> bool:
    """Whether the group and session numbered as the leader are still the leader's.

    A number stays taken while its group has members, so the leader (a zombie will do) or
    one proven member in it is the proof.
    """
    holder = _holder(leader)
    if holder is _Holder.LEADER:
        return True
    if holder is _Holder.ANOTHER:
        return False
    return any(
        is_running(who) and leader.pid in (_group_of(pid), _session_of(pid))
        for pid, who in members.items()
    )


def group_pids(group: int) -> tuple[int, ...]:
    """Pids now in this process group or in the session of that number, zombies left out."""
    return tuple(pid for pid in _listed(group) if not _is_zombie(pid))


def _listed(group: int) -> list[int]:
    return [pid for pid in running_pids() if _group_of(pid) == group or _session_of(pid) == group]


def _others_in_group(group: int, known: tuple[ProcessIdentity, ...]) -> int:
    listed = _listed(group)
    others = {pid for pid in listed if not _is_zombie(pid)} - {who.pid for who in known}
    if listed or known:
        return len(others)
    # Nobody is seen: believe it only if the kernel says the same.
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return 0
    except PermissionError:
        return 1
    return 1


def _is_zombie(pid: int) -> bool:
    try:
        sight = look(pid)
    except Unreadable:
        return False
    return sight is None or sight.ended


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _log_writers(census: Census, relay: ProcessIdentity | None) -> dict[int, ProcessIdentity]:
    """Whoever has the launch's log pipe as output inherited it from the launch."""
    pipe = None if relay is None else descriptor_target(relay.pid, 0)
    if relay is None or pipe is None or not pipe.startswith("pipe:"):
        return {}
    writers = {
        pid: sight.identity
        for pid, sight in census.items()
        if pipe in (descriptor_target(pid, 1), descriptor_target(pid, 2))
    }
    # The number of a pipe is its own only while the relay holds it.
    return writers if is_running(relay) else {}


def descriptor_target(pid: int, descriptor: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return None


def _add_offspring(census: Census, found: dict[int, ProcessIdentity]) -> None:
    """Children of members, their children, and so on. A wave is at least one generation."""
    for _wave in range(len(census)):
        children = {
            pid: sight.identity
            for pid, sight in census.items()
            if pid not in found
            and sight.parent_pid in found
            # Alive after its child was seen: then it was this parent and no other.
            and is_running(found[sight.parent_pid])
        }
        if not children:
            return
        found.update(children)

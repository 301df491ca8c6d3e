"""Finds again what belongs to a launch that an earlier daemon started."""

from __future__ import annotations

from pathlib import Path

from capyctl.domain.identity import ProcessIdentity
from capyctl.launch.identity import boot_id
from capyctl.launch.kin import Kin, take_census

CMDLINE_BYTES_MAX = 16_384


def adopt(leader: ProcessIdentity, *, relay_program: Path) -> Kin:
    """Everything of this launch that still runs. Blocks; milliseconds.

    The leader itself may be gone: its log relay names it on its command line, and whoever
    writes to that relay belongs to the launch.
    """
    kin = Kin(leader, relay=_find_relay(leader, relay_program))
    kin.record_now()
    return kin


def relay_label(leader: ProcessIdentity) -> str:
    """How a relay's command line names the launch it serves."""
    return f"{leader.pid}:{leader.start_ticks}"


def _find_relay(leader: ProcessIdentity, relay_program: Path) -> ProcessIdentity | None:
    if leader.boot_id != boot_id():
        return None
    label = relay_label(leader).encode()
    for pid, sight in take_census(leader.start_ticks).items():
        if sight.session != pid:
            continue  # every relay opened a session of its own
        words = _cmdline(pid)
        if label in words and any(word.endswith(relay_program.name.encode()) for word in words):
            return sight.identity
    return None


def _cmdline(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(CMDLINE_BYTES_MAX).split(b"\0")
    except OSError:
        return []

"""Ends every process of a launch and proves it, for our children and for adopted ones."""

from __future__ import annotations

import signal

import trio

from capyctl.launch.kin import Kin

POLL_FIRST_S = 0.02
POLL_MAX_S = 0.2


async def end_group(kin: Kin, *, grace_s: float, proof_s: float) -> bool:
    """SIGTERM, up to ``grace_s`` seconds, SIGKILL; then prove that nothing is left.

    Members that left the group are ended as well. A process that cannot be proven to be
    the launch's own is never signalled. Cancelling stops the waiting and the signalling;
    what was signalled already stays signalled, and calling again carries on.

    Args:
        grace_s: seconds the launch may take to exit by itself; 0 kills at once.
        proof_s: seconds to wait, after the first SIGKILL, for the last process to disappear.

    Returns:
        True when no process of the launch is left. False when that cannot be shown:
        the caller must treat its memory as still in use.
    """
    await kin.record()
    if grace_s > 0 and not kin.left().nothing:
        kin.signal(signal.SIGTERM)
        with trio.move_on_after(grace_s):
            await _wait_nothing_left(kin)
    kin.signal(signal.SIGKILL)
    with trio.move_on_after(proof_s) as proof:
        await _wait_nothing_left(kin, kill=True)
    return not proof.cancelled_caught


async def _wait_nothing_left(kin: Kin, *, kill: bool = False) -> None:
    """Return when two looks in a row, the second a thorough one, find nothing."""
    pause_s = POLL_FIRST_S
    while True:
        if kin.left().nothing:
            await kin.record()
            if kin.left().nothing:
                return
        elif kill:
            await kin.record()
            kin.signal(signal.SIGKILL)
        await trio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, POLL_MAX_S)

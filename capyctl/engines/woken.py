"""The last step of every wake: the engine answers the fixed prompt as it did before it parked."""

from __future__ import annotations

import trio

from capyctl.contracts.engines import EngineBroken, NotReady
from capyctl.engines.http import Unreachable
from capyctl.engines.questions import canary_path, same_canary
from capyctl.engines.readiness import Caller, ask_canary, wait_completion


async def hear_canary(caller: Caller, canary: str | None, *, within_s: float) -> None:
    """Ask the canary again; without one, any completion will do.

    Raises:
        EngineBroken: ``wake_failed``: no answer. ``wake_mismatch``: another answer.
    """
    try:
        with trio.fail_after(within_s):
            if canary is None:
                await wait_completion(caller)
                return
            after = await ask_canary(caller, canary_path(canary))
    except (NotReady, Unreachable, trio.TooSlowError) as problem:
        raise EngineBroken("wake_failed", f"it did not answer after the wake: {problem}") from None
    if not same_canary(canary, after):
        raise EngineBroken(
            "wake_mismatch", "it answers the fixed prompt otherwise than before it was parked"
        )

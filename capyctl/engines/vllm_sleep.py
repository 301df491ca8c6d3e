"""vLLM's sleep protocol: what is sent in which order, and what must be true after every step.

The status of an answer proves nothing here: an unknown tag is answered with 200 as well. So each
step reads the engine's own words, and `/is_sleeping` before and after is what counts.
No call is ever repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from capyctl.contracts.engines import EngineBroken, NotReady, ParkRefused
from capyctl.domain.devices import EngineSample
from capyctl.engines.http import Reply, Unreachable
from capyctl.engines.idle import wait_idle
from capyctl.engines.readiness import Caller, told, wait_completion
from capyctl.engines.woken import hear_canary

IDLE_WITHIN_S = 10.0
"""Gauges move with the engine's steps, so the last request may show for a moment longer."""
PARK_WITHIN_S = 300.0
WAKE_WITHIN_S = 900.0
RELOAD_WITHIN_S = 900.0
CANARY_WITHIN_S = 120.0


async def read_sleeping(caller: Caller) -> bool:
    """What `/is_sleeping` says.

    Raises:
        Unreachable: no answer.
        ValueError: an answer that is neither true nor false; the text tells it.
    """
    reply = await caller.get("/is_sleeping", admin=True)
    found = (reply.json_object() or {}).get("is_sleeping")
    if reply.status != 200 or not isinstance(found, bool):
        raise ValueError(f"/is_sleeping answered {told(reply)}")
    return found


async def park(
    caller: Caller, level: int, sample: Callable[[], Awaitable[EngineSample | None]]
) -> None:
    """Put an idle vLLM to sleep at ``level`` 1 or 2.

    Raises:
        ParkRefused: nothing was changed.
        EngineBroken: ``park_failed``: it may or may not sleep.
    """
    try:
        asleep = await read_sleeping(caller)
    except (Unreachable, ValueError) as problem:
        raise ParkRefused(f"its state could not be read: {problem}") from problem
    if asleep:
        raise EngineBroken("park_failed", "it says that it sleeps, though it should be serving")
    await wait_idle(sample, within_s=IDLE_WITHIN_S)
    path = f"/sleep?level={level}&mode=wait"
    try:
        reply = await caller.post(path, within_s=PARK_WITHIN_S, admin=True)
    except Unreachable as problem:
        if not problem.sent:
            raise ParkRefused(f"{path} could not be sent: {problem}") from problem
        raise EngineBroken("park_failed", f"the outcome of {path} is unknown") from problem
    if reply.status != 200:
        await _refuse_if_unharmed(caller, f"{path} answered {told(reply)}")
    _expect(reply, path, "park_failed", status="sleeping", level=level)
    if not await _sleeping_now(caller, "park_failed"):
        raise EngineBroken("park_failed", f"{path} answered 200, yet it does not sleep")


async def wake(caller: Caller, level: int, *, canary: str | None) -> None:
    """Wake a vLLM that was put to sleep at ``level``, and hear its canary.

    Weights first (at level 2 read again from disk), then the cache, whose stale prefixes go.

    Raises:
        EngineBroken: ``wake_failed``, or ``wake_mismatch`` where it answers otherwise.
    """
    if not await _sleeping_now(caller, "wake_failed"):
        raise EngineBroken("wake_failed", "it says that it does not sleep, though it was parked")
    await _wake_tag(caller, "weights", left_asleep=True)
    if level == 2:
        await _reload_weights(caller)
    await _wake_tag(caller, "kv_cache", left_asleep=False)
    reset = await _send(caller, "/reset_prefix_cache", within_s=WAKE_WITHIN_S)
    _expect(reset, "/reset_prefix_cache", "wake_failed", success=True)
    await hear_canary(caller, canary, within_s=CANARY_WITHIN_S)


async def _refuse_if_unharmed(caller: Caller, why: str) -> None:
    """An engine that is awake and still answers was not touched by a park that failed.

    Raises:
        ParkRefused: so it is.
        EngineBroken: so it is not.
    """
    if not await _sleeping_now(caller, "park_failed"):
        with trio.move_on_after(CANARY_WITHIN_S):
            try:
                await wait_completion(caller)
            except NotReady as problem:
                raise EngineBroken("park_failed", f"{why}; then {problem}") from problem
            raise ParkRefused(why)
    raise EngineBroken("park_failed", why)


async def _wake_tag(caller: Caller, tag: str, *, left_asleep: bool) -> None:
    path = f"/wake_up?tags={tag}"
    reply = await _send(caller, path, within_s=WAKE_WITHIN_S)
    words = _expect(reply, path, "wake_failed", status="sleeping" if left_asleep else "awake")
    if isinstance(words.get("tags"), list) and tag not in words["tags"]:
        raise EngineBroken("wake_failed", f"{path} answered for other tags: {told(reply)}")
    if await _sleeping_now(caller, "wake_failed") is not left_asleep:
        state = "awake" if left_asleep else "asleep"
        raise EngineBroken("wake_failed", f"after {path} it is {state}, which is out of order")


async def _reload_weights(caller: Caller) -> None:
    path = "/collective_rpc"
    reply = await _send(caller, path, {"method": "reload_weights"}, within_s=RELOAD_WITHIN_S)
    words = _expect(reply, f"{path} reload_weights", "wake_failed")
    if not isinstance(words.get("results"), list) or not words["results"]:
        raise EngineBroken("wake_failed", f"reload_weights brought no results: {told(reply)}")


async def _sleeping_now(caller: Caller, code: str) -> bool:
    try:
        return await read_sleeping(caller)
    except (Unreachable, ValueError) as problem:
        raise EngineBroken(code, f"its state could not be read: {problem}") from problem


async def _send(caller: Caller, path: str, value: Any = None, *, within_s: float) -> Reply:
    try:
        return await caller.post(path, value, within_s=within_s, admin=True)
    except Unreachable as problem:
        raise EngineBroken("wake_failed", f"the outcome of {path} is unknown") from problem


def _expect(reply: Reply, path: str, code: str, **expected: Any) -> dict[str, Any]:
    """The words of a 200, which agree with ``expected`` as far as there are any.

    Older builds answer with an empty body; then `/is_sleeping` alone has to tell.
    """
    if reply.status != 200:
        raise EngineBroken(code, f"{path} answered {told(reply)}")
    if not reply.body.strip():
        return {}
    words = reply.json_object()
    if words is None:
        raise EngineBroken(code, f"{path} answered something other than JSON: {told(reply)}")
    for name, value in expected.items():
        if words.get(name) != value:
            raise EngineBroken(code, f"{path}: {name} is not {value!r}: {told(reply)}")
    return words

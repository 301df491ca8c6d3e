"""SGLang's memory occupation: what is sent in which order, and what must be true before it.

Misuse is not answered with an error: the server dies. A release while something runs, a resume
of what is not released, a second resume after a lost answer are all fatal. So a release is sent
only to an engine that is idle and paused, what was released is kept in mind and taken off the
list before it is asked for, and no call is ever repeated. While it is parked only `/ping` and
`/ready` are asked: `/health` would generate a token on memory that is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import trio

from capyctl.contracts.engines import EngineBroken, NotReady, ParkRefused
from capyctl.domain.devices import EngineSample
from capyctl.engines.http import Reply, Unreachable
from capyctl.engines.idle import wait_idle
from capyctl.engines.readiness import Caller, told, wait_completion
from capyctl.engines.woken import hear_canary

WEIGHTS, KV_CACHE = "weights", "kv_cache"
IDLE_WITHIN_S = 35.0
"""Older releases refresh the gauges of an idle engine every 30 s only."""
PAUSE_WITHIN_S = 60.0
RELEASE_WITHIN_S = 300.0
RESUME_WITHIN_S = 300.0
RELOAD_WITHIN_S = 900.0
FLUSH_WITHIN_S = 60.0
CANARY_WITHIN_S = 120.0
KNOWN_MAX = 256


@attrs.frozen(kw_only=True)
class Saver:
    """How an engine parks, as its own settings tell."""

    tags: tuple[str, ...]
    """What a park releases. A speculative engine keeps its weights, drafts included."""
    reloads: bool
    """Whether a wake has to read the weights again."""


@attrs.define
class Released:
    """What each engine has released, by its port and key. Forgotten with the daemon."""

    _tags: dict[tuple[int, str | None], set[str]] = attrs.field(factory=dict)

    def of(self, caller: Caller) -> set[str] | None:
        """None: nothing is known of this engine."""
        return self._tags.get(_identity(caller))

    def keep(self, caller: Caller, tags: set[str]) -> None:
        if len(self._tags) >= KNOWN_MAX:
            self._tags.clear()
        self._tags[_identity(caller)] = tags


def _identity(caller: Caller) -> tuple[int, str | None]:
    return caller.control.endpoint.port, caller.control.admin_key


async def read_saver(caller: Caller, level: int) -> Saver:
    """What `/server_info` says of parking at ``level`` 1 or 2.

    Raises:
        ParkRefused: nothing, or that this engine must not be parked like this.
    """
    try:
        reply = await caller.get("/server_info")
    except Unreachable as problem:
        raise ParkRefused(f"its settings could not be read: {problem}") from problem
    found = reply.json_object() if reply.status == 200 else None
    if found is None:
        # Not told further: the body holds the keys.
        raise ParkRefused(f"/server_info answered {reply.status}, without settings")
    _check_saver(found, level)
    speculates = found.get("speculative_algorithm") not in (None, "", "none")
    return Saver(
        tags=(KV_CACHE,) if speculates else (KV_CACHE, WEIGHTS),
        reloads=level == 2 and not speculates,
    )


def _check_saver(found: Mapping[str, Any], level: int) -> None:
    if found.get("enable_memory_saver") is not True:
        raise ParkRefused("it runs without the memory saver, so a park would free nothing")
    if found.get("weight_cache_mode") not in (None, "", "off"):
        raise ParkRefused("its weights are shared with other processes (--weight-cache-mode)")
    if level == 1 and found.get("enable_weights_cpu_backup") is not True:
        raise ParkRefused("it keeps no copy of its weights in host memory")
    if level == 2 and found.get("delete_ckpt_after_loading") is True:
        raise ParkRefused("it deletes its checkpoint, so no wake could read it again")


async def park(
    caller: Caller,
    level: int,
    sample: Callable[[], Awaitable[EngineSample | None]],
    released: Released,
) -> None:
    """Pause an idle SGLang and release its memory.

    Raises:
        ParkRefused: it serves on.
        EngineBroken: ``park_failed``: nobody knows what it released.
    """
    if released.of(caller):
        raise EngineBroken("park_failed", "its memory is released already")
    saver = await read_saver(caller, level)
    await _check_serving(caller)
    await wait_idle(sample, within_s=IDLE_WITHIN_S)
    await _pause(caller)
    try:
        reply = await caller.post(
            "/release_memory_occupation",
            {"tags": list(saver.tags)},
            within_s=RELEASE_WITHIN_S,
            admin=True,
        )
    except Unreachable as problem:
        if problem.sent:
            raise EngineBroken("park_failed", "the outcome of the release is unknown") from problem
        await _serve_on(caller, f"the release could not be sent: {problem}")
    else:
        if reply.status != 200:
            await _serve_on(caller, f"/release_memory_occupation answered {told(reply)}")
    released.keep(caller, set(saver.tags))
    await _check_paused(caller, "park_failed")


async def wake(caller: Caller, level: int, *, canary: str | None, released: Released) -> None:
    """Take back what was released, read weights again where they are lost, and hear the canary.

    Raises:
        EngineBroken: ``wake_failed``, or ``wake_mismatch`` where it answers otherwise.
    """
    await _check_paused(caller, "wake_failed")
    try:
        saver = await read_saver(caller, level)
    except ParkRefused as problem:
        raise EngineBroken("wake_failed", str(problem)) from problem
    known = released.of(caller)
    left = set(saver.tags) if known is None else known
    released.keep(caller, left)
    if left != set(saver.tags):
        held = ", ".join(sorted(left)) or "nothing"
        raise EngineBroken("wake_failed", f"it has released {held}, not what a park releases")
    if WEIGHTS in saver.tags:
        await _resume(caller, WEIGHTS, left)
        if saver.reloads:
            await _reload(caller)
    await _resume(caller, KV_CACHE, left)
    await _send(caller, "/flush_cache", within_s=FLUSH_WITHIN_S)
    await _send(caller, "/continue_generation", {}, within_s=PAUSE_WITHIN_S)
    await hear_canary(caller, canary, within_s=CANARY_WITHIN_S)


async def _check_serving(caller: Caller) -> None:
    """Neither unhealthy nor paused, as far as this release tells.

    Raises:
        ParkRefused: it cannot be read, or is in trouble of its own.
        EngineBroken: it is paused, though it should be serving.
    """
    try:
        ping, ready = await caller.get("/ping"), await caller.get("/ready")
    except Unreachable as problem:
        raise ParkRefused(f"its state could not be read: {problem}") from problem
    if ping.status not in (200, 404):
        raise ParkRefused(f"/ping answered {told(ping)}")
    if ready.status == 503:
        raise EngineBroken("park_failed", "it is paused, though it should be serving")


async def _check_paused(caller: Caller, code: str) -> None:
    """Alive, and paused: without that a request would run on memory that is gone.

    Raises:
        EngineBroken: one of them is not so.
    """
    try:
        ping, ready = await caller.get("/ping"), await caller.get("/ready")
    except Unreachable as problem:
        raise EngineBroken(code, f"its state could not be read: {problem}") from problem
    if ping.status not in (200, 404):
        raise EngineBroken(code, f"/ping answered {told(ping)}")
    if ready.status not in (503, 404):
        raise EngineBroken(code, f"/ready answered {told(ready)}, so it is not paused")


async def _pause(caller: Caller) -> None:
    try:
        reply = await caller.post(
            "/pause_generation", {"mode": "abort"}, within_s=PAUSE_WITHIN_S, admin=True
        )
    except Unreachable as problem:
        if not problem.sent:
            raise ParkRefused(f"the pause could not be sent: {problem}") from problem
        raise EngineBroken("park_failed", "the outcome of the pause is unknown") from problem
    if reply.status != 200:
        await _serve_on(caller, f"/pause_generation answered {told(reply)}")


async def _serve_on(caller: Caller, why: str) -> None:
    """Nothing was released: let it go on, and see that it does.

    Raises:
        ParkRefused: it does.
        EngineBroken: it does not.
    """
    try:
        reply = await caller.post("/continue_generation", {}, within_s=PAUSE_WITHIN_S, admin=True)
        if reply.status == 200:
            with trio.move_on_after(CANARY_WITHIN_S):
                await wait_completion(caller)
                raise ParkRefused(why)
    except (Unreachable, NotReady) as problem:
        raise EngineBroken("park_failed", f"{why}; then {problem}") from problem
    raise EngineBroken("park_failed", f"{why}; then it served no more")


async def _resume(caller: Caller, tag: str, left: set[str]) -> None:
    """Asked for at most once, whatever comes of it."""
    left.remove(tag)
    body = {"tags": [tag]}
    await _send(caller, "/resume_memory_occupation", body, within_s=RESUME_WITHIN_S)


async def _reload(caller: Caller) -> None:
    path = "/update_weights_from_disk"
    body = {"model_path": caller.control.model_path}
    reply = await _send(caller, path, body, within_s=RELOAD_WITHIN_S)
    words = reply.json_object() or {}
    if words.get("success") is not True:
        raise EngineBroken("wake_failed", f"{path} answered {told(reply)}")


async def _send(caller: Caller, path: str, value: Any = None, *, within_s: float) -> Reply:
    try:
        reply = await caller.post(path, value, within_s=within_s, admin=True)
    except Unreachable as problem:
        raise EngineBroken("wake_failed", f"the outcome of {path} is unknown") from problem
    if reply.status != 200:
        raise EngineBroken("wake_failed", f"{path} answered {told(reply)}")
    return reply

"""Follows the management events in a thread of its own, and lets the play wait for states."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from capyctl.cli.client import Client
from capyctl.cli.failure import CommandFailed
from capyctl.client.models import Event
from capyctl.client.retrying import Retries

PATIENT = Retries(attempts_max=1000, pause_s=0.2, pause_s_max=0.2)
"""The play kills its role and starts it again."""
AWAKE = frozenset({"starting", "ready", "parking", "stopping"})
Moved = Callable[[str, str, str], None]


class Watch:
    """States by deployment name, as the events tell them."""

    def __init__(self, client: Client, names: Mapping[str, str], moved: Moved) -> None:
        """``names`` by deployment id; ``moved`` gets name and the states before and after."""
        self._client = client
        self._names = names
        self._moved = moved
        self._changed = threading.Condition()
        self._states: dict[str, str] = dict.fromkeys(names.values(), "stopped")
        self._is_ended = False

    def start(self, cursor: str) -> None:
        """Begin after a cursor. The thread ends with the process or with `end`."""
        thread = threading.Thread(target=self._follow, args=(cursor,), daemon=True)
        thread.start()

    def end(self) -> None:
        """Tell nothing more."""
        self._is_ended = True

    def awake(self) -> set[str]:
        """Names of the models whose engine holds what it needs to serve."""
        with self._changed:
            return {name for name, state in self._states.items() if state in AWAKE}

    def wait_for(self, name: str, state: str, within_s: float) -> float:
        """Seconds until ``name`` is in ``state``.

        Raises:
            CommandFailed: ``demo_failed``: it failed, or did not get there in time.
        """
        began_s = time.monotonic()
        with self._changed:
            while self._states[name] != state:
                left_s = began_s + within_s - time.monotonic()
                if self._states[name] == "failed" or left_s <= 0:
                    raise CommandFailed("demo_failed", self._why(name, state, within_s))
                self._changed.wait(min(left_s, 1.0))
        return time.monotonic() - began_s

    def _why(self, name: str, state: str, within_s: float) -> str:
        text = f"{name} is {self._states[name]}, not {state}, after {within_s:g} s"
        with contextlib.suppress(CommandFailed):
            for row in self._client.get("/snapshot")["deployments"]:
                latest = row.get("latest_operation") or {}
                if row.get("name") == name and latest.get("reason"):
                    text += f": {latest['reason']}"
        return text

    def _follow(self, cursor: str) -> None:
        with contextlib.suppress(CommandFailed):
            for told in self._client.follow(cursor, retries=PATIENT):
                if self._is_ended:
                    return
                if isinstance(told, Event):
                    self._tell(told)

    def _tell(self, event: Event) -> None:
        payload: Mapping[str, Any] = event.payload
        name = self._names.get(str(event.deployment_id))
        before, after = payload.get("from"), payload.get("to")
        if name is None or not isinstance(after, str) or before == after:
            return
        # Shown first: whoever waits for the state writes what comes after it.
        with self._changed:
            self._states[name] = after
        self._moved(name, str(before), after)
        with self._changed:
            self._changed.notify_all()

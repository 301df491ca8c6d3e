"""One engine family: its command line, and its control surface while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from capyctl.domain.devices import EngineSample
from capyctl.domain.launches import Endpoint, LaunchOrder
from capyctl.domain.specs import ModelTask


@attrs.frozen(kw_only=True)
class Rendered:
    """A command line and environment, complete."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class LaunchKeys:
    """The keys of one launch. Never on a command line."""

    inference: str = attrs.field(repr=False)
    admin: str = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Control:
    """How the daemon itself reaches one running engine."""

    endpoint: Endpoint
    admin_key: str | None = attrs.field(repr=False)
    model_path: str
    level: int | None = None
    """vLLM sleep level of the residency: 1 for host_backed, 2 for deep."""
    task: ModelTask = ModelTask.GENERATE


class NotReady(Exception):
    """The engine answered in a way that waiting will not mend (``code``, one sentence)."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class ParkRefused(Exception):
    """The engine did not park and serves on. One sentence says why."""


class EngineBroken(Exception):
    """A control call failed half way: only ending the engine is safe. One sentence says why."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class Family(Protocol):
    """All that the rest of capyctl knows of one engine family."""

    @property
    def name(self) -> str: ...

    @property
    def parks(self) -> bool:
        """False: restart-only, whatever routes the engine has."""

    @property
    def takes_key(self) -> bool:
        """Whether requests carry the launch's inference key."""

    def routes(self, task: ModelTask) -> frozenset[str]:
        """Inference paths of an engine with a model for ``task``; empty: it has no such models."""

    def render(self, order: LaunchOrder, *, port: int, keys: LaunchKeys) -> Rendered:
        """Command line and closed environment. Pure.

        Raises:
            ValueError: the settings contradict each other; the message names the field.
        """

    async def wait_ready(self, control: Control, order: LaunchOrder | None) -> str | None:
        """Return once a real completion came back; the text of the canary prompt, or None.

        Polls without an end of its own: the caller bounds it by cancelling. Refused
        connections and 503 are not errors. With ``order`` None (an engine found again)
        settings are not compared.

        Raises:
            NotReady: it will never be ready as ordered (``effective_args_mismatch`` …).
        """

    async def park(self, control: Control) -> None:
        """Give the GPU memory back, in the engine's safe order, and check its own word.

        Call only when nothing runs in it. Never repeated blindly.

        Raises:
            ParkRefused: nothing happened; the engine still serves.
            EngineBroken: it is in an unknown state.
        """

    async def wake(self, control: Control, *, canary: str | None) -> None:
        """Take the memory back, reload, and answer the canary as before.

        Raises:
            EngineBroken: anything else happened (``wake_failed``, ``wake_mismatch``).
        """

    async def sample(self, control: Control) -> EngineSample | None:
        """The engine's own gauges; None when it does not answer within 2 s."""

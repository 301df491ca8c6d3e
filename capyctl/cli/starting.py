"""A start from the command's side: what has to come first, the action itself, and its outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from capyctl.cli.call import Call
from capyctl.cli.client import ANSWER_S_MAX, Client
from capyctl.cli.failure import CommandFailed
from capyctl.cli.journal import Request, Step
from capyctl.cli.progress import Progress
from capyctl.cli.sending import send_change
from capyctl.cli.snapshot import (
    Row,
    deployment_of,
    inputs_pending,
    is_about_memory,
    only,
    operation_state,
    start_failure,
    started,
    window_ms,
)
from capyctl.cli.waiting import wait_for
from capyctl.client.errors import WaitedTooLong
from capyctl.client.judging import Pending
from capyctl.client.requests import PREFIX

GRACE_MS = 10_000
"""How long after the deadline the outcome is still looked for."""
NOT_YET = frozenset({"checkpoint_digest_pending", "model_source_pending", "still_stopping"})
PAUSE_S_MIN = 0.25
PAUSE_S_MAX = 5.0


@attrs.frozen(kw_only=True)
class Start:
    """A start that was asked for."""

    call: Call
    client: Client
    request: Request
    evict: bool = False
    initialize_ms: int | None = None
    """Instead of the deployment's own window."""
    index: int | None = None
    """Of this instance alone."""

    def send(self, deployment: Row) -> dict[str, Any]:
        """Ask for the start. The receipt.

        Raises:
            CommandFailed: as `send_change`.
        """
        stored = self.request.stored("action")
        return self._send(stored or self._record(deployment))

    def send_when_possible(self, deployment: Row) -> dict[str, Any]:
        """As `send`, once the model's files are measured and an earlier stop has ended.

        A start that is refused because these are not done yet is asked for again, with a new
        deadline under the same key: a refusal was not recorded.

        Raises:
            CommandFailed: also the last of these refusals, when its window is over.
        """
        stored = self.request.stored("action")
        if stored is not None:
            try:
                return self._send(stored)
            except CommandFailed as failure:
                if failure.code not in NOT_YET:
                    raise
        here = self.call.here
        began_ms = here.wall_ms()
        inputs_until_ms = began_ms + (self.initialize_ms or window_ms(deployment, "initialize_ms"))
        stop_until_ms = began_ms + window_ms(deployment, "stop_ms")
        look_until_ms = inputs_until_ms
        pause_s = PAUSE_S_MIN
        progress = Progress(here)
        try:
            while True:
                self._wait_for_inputs(deployment["id"], look_until_ms)
                try:
                    return self._send(self._record(deployment))
                except CommandFailed as failure:
                    stopping = failure.code == "still_stopping"
                    until_ms = stop_until_ms if stopping else inputs_until_ms
                    look_until_ms = max(look_until_ms, until_ms)
                    if failure.code not in NOT_YET or here.wall_ms() >= until_ms:
                        raise
                    what = f"{deployment['name']} can be started: {failure.message}"
                progress.show(what, until_ms)
                here.sleep(pause_s)
                pause_s = min(PAUSE_S_MAX, pause_s * 2)
        finally:
            progress.end()

    def wait_until_ready(self, receipt: Mapping[str, Any]) -> Row:
        """The deployment, once every instance that is meant and not stopped by hand serves.

        Raises:
            CommandFailed: ``operation_failed``, ``insufficient_resources`` or, when its
                deadline passes first, ``activation_timeout``.
        """
        deadline_ms = self._deadline_ms()
        id, operation = str(receipt["deployment_id"]), receipt.get("operation_id")
        last: list[Row] = []

        def look(snapshot: Row) -> Row | Pending:
            deployment = deployment_of(snapshot, id)
            if deployment is not None and self.index is not None:
                deployment = only(deployment, self.index)
            last[:] = [] if deployment is None else [deployment]
            return started(deployment, operation_state(snapshot, operation))

        try:
            return wait_for(
                self.client,
                look,
                until_ms=deadline_ms + GRACE_MS,
                progress=Progress(self.call.here),
            )
        except WaitedTooLong as problem:
            raise _too_long(problem, last[0] if last else None) from None

    def _wait_for_inputs(self, id: str, until_ms: int) -> None:
        def look(snapshot: Row) -> bool | Pending:
            deployment = deployment_of(snapshot, id)
            if deployment is None:
                raise CommandFailed("not_found", f"the deployment {id} was deleted meanwhile")
            return inputs_pending(deployment) or True

        progress = Progress(self.call.here)
        try:
            wait_for(self.client, look, until_ms=until_ms, progress=progress)
        except WaitedTooLong as problem:
            raise CommandFailed(
                "activation_timeout", f"nothing was started; still waiting: {problem.last}"
            ) from None

    def _record(self, deployment: Row) -> Step:
        now_ms = self.call.here.wall_ms()
        window = self.initialize_ms or window_ms(deployment, "initialize_ms")
        fields: dict[str, Any] = {
            "action": "start",
            "expected_revision": int(deployment["revision"]),
            "deadline_ms": now_ms + window,
        }
        if self.evict:
            fields["evict"] = True
        at = "" if self.index is None else f"/instances/{self.index}"
        path = f"{PREFIX}/deployments/{deployment['id']}{at}/actions"
        return self.request.record("action", "POST", path, fields)

    def _send(self, step: Step) -> dict[str, Any]:
        within_s = ANSWER_S_MAX
        if self.evict:
            left_ms = self._deadline_ms() - self.call.here.wall_ms()
            within_s = max(ANSWER_S_MAX, (left_ms + GRACE_MS) / 1000)
        return send_change(self.client, step, within_s=within_s)

    def _deadline_ms(self) -> int:
        step = self.request.stored("action")
        if step is None:
            return self.call.here.wall_ms() + (self.initialize_ms or 0)
        return int(json.loads(step.body)["deadline_ms"])


def _too_long(problem: WaitedTooLong, deployment: Row | None) -> CommandFailed:
    if deployment is not None:
        failure = start_failure(deployment)
        errors = [str(row.get("last_error", "")) for row in deployment.get("instances", [])]
        latest: Row = deployment.get("latest_operation") or {}
        if is_about_memory([*errors, str(latest.get("reason", ""))]):
            return failure
    return CommandFailed("activation_timeout", f"not ready by the deadline: {problem.last}")

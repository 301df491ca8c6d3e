"""Deployments for the cases: made, driven and taken away over the API alone."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from capyctl.simulated.checkpoint_writer import write_checkpoint
from tests.contract.speaking import Answer, Connection, Target

MIB = 1 << 20
WAIT_S_MAX = 30.0
POLL_S = 0.02
_numbers = itertools.count(1)
RUN = f"{time.time_ns():x}"
"""Makes the names and keys of this run its own."""


class NotReached(AssertionError):
    """What was waited for did not come about; says what was seen last."""


def fresh_key() -> str:
    return f"case-{RUN}-{next(_numbers)}"


def fresh_name(stem: str = "model") -> str:
    return f"{stem}-{RUN}-{next(_numbers)}"


@attrs.define
class Fleet:
    """A controller with no memory but the ids of what it made."""

    target: Target
    models: Path
    """The models directory of the implementation; checkpoints are written there."""
    made: list[str] = attrs.field(factory=list)

    # -- documents ---------------------------------------------------------------------------

    def checkpoint(self, name: str, *, weights_mib: int = 64, format: str = "safetensors") -> str:
        """A model directory of this name; sparse, so that any size is quick."""
        if not (self.models / name).exists():
            write_checkpoint(self.models / name, weights_bytes=weights_mib * MIB, format=format)
        return name

    def document(
        self, name: str | None = None, *, model: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        """A minimal document; its model is a small one, shared by all that name no other."""
        named = fresh_name() if name is None else name
        found = self.checkpoint("small") if model is None else model
        return {"name": named, "engine": "vllm", "model": found, **fields}

    # -- changes -----------------------------------------------------------------------------

    def send_create(self, document: dict[str, Any], *, key: str | None = None) -> Answer:
        body = {"config": document, "activate": False}
        answer = self.target.change("POST", "/deployments", body, key=key or fresh_key())
        if answer.status == 202:
            self.made.append(answer.json()["deployment_id"])
        return answer

    def create(self, document: dict[str, Any] | None = None, **fields: Any) -> str:
        """The id of a deployment whose files are measured."""
        id = self.create_unmeasured(document, **fields)
        self.wait(id, lambda row: row["checkpoint_digest"]["state"] != "pending", what="measured")
        return id

    def create_unmeasured(self, document: dict[str, Any] | None = None, **fields: Any) -> str:
        answer = self.send_create(self.document(**fields) if document is None else document)
        assert answer.status == 202, answer.body
        return str(answer.json()["deployment_id"])

    def ready(self, document: dict[str, Any] | None = None, **fields: Any) -> str:
        """The id of a deployment every instance of which serves."""
        id = self.create(document, **fields)
        self.accept(id, "start")
        self.wait_ready(id)
        return id

    def action(self, id: str, action: str, **fields: Any) -> dict[str, Any]:
        """The body of an action within its window, on the revision of the snapshot."""
        row = self.row(id)
        window = {"start": "initialize_ms", "preinitialize": "request_deadline_ms"}
        ahead_ms = row["timeouts"][window.get(action, "stop_ms")]
        return {
            "action": action,
            "expected_revision": int(row["revision"]),
            "deadline_ms": now_ms() + ahead_ms,
            **fields,
        }

    def act(
        self, id: str, action: str, *, key: str | None = None, index: int | None = None, **more: Any
    ) -> Answer:
        """One action, sent once."""
        return self.send_action(id, self.action(id, action, **more), key=key, index=index)

    def send_action(
        self, id: str, body: object, *, key: str | None = None, index: int | None = None
    ) -> Answer:
        part = "" if index is None else f"/instances/{index}"
        path = f"/deployments/{id}{part}/actions"
        return self.target.change("POST", path, body, key=key or fresh_key())

    def accept(self, id: str, action: str, **more: Any) -> dict[str, Any]:
        """The receipt of an action, sent again under its key while that can succeed."""
        body = self.action(id, action, **{k: v for k, v in more.items() if k == "evict"})
        key = more.get("key") or fresh_key()
        until = time.monotonic() + WAIT_S_MAX
        while True:
            answer = self.send_action(id, body, key=key, index=more.get("index"))
            if answer.status == 202:
                found: dict[str, Any] = answer.json()
                return found
            assert answer.json()["error"]["retryable"], answer.body
            if time.monotonic() > until:
                raise NotReached(f"{action}: {answer.body!r}")
            time.sleep(POLL_S)

    def send_replace(
        self, id: str, document: dict[str, Any], *, revision: int, key: str | None = None
    ) -> Answer:
        body = {"config": document, "expected_revision": revision}
        return self.target.change("PUT", f"/deployments/{id}", body, key=key or fresh_key())

    # -- reads -------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        until = time.monotonic() + WAIT_S_MAX
        while (answer := self.target.ask("GET", "/snapshot")).status == 429:
            assert time.monotonic() < until
            time.sleep(POLL_S)
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json()
        return found

    def find(self, id: str) -> dict[str, Any] | None:
        return next((row for row in self.snapshot()["deployments"] if row["id"] == id), None)

    def row(self, id: str) -> dict[str, Any]:
        found = self.find(id)
        assert found is not None, f"{id} is not in the snapshot"
        return found

    def operation(self, id: object) -> dict[str, Any]:
        rows = self.snapshot()["operations"]
        found: dict[str, Any] = next(row for row in rows if row["id"] == id)
        return found

    def wait(
        self,
        id: str,
        check: Callable[[dict[str, Any]], Any],
        *,
        what: str,
        within_s: float = WAIT_S_MAX,
    ) -> dict[str, Any]:
        """The first state of the deployment for which ``check`` holds."""
        until = time.monotonic() + within_s
        while not check(row := self.row(id)):
            if time.monotonic() > until:
                raise NotReached(f"{what}: {json.dumps(row)}")
            time.sleep(POLL_S)
        return row

    def wait_ready(self, id: str) -> dict[str, Any]:
        def check(row: dict[str, Any]) -> bool:
            return bool(row["ready_instances"] == row["desired_instances"])

        return self.wait(id, check, what="ready")

    def wait_state(self, id: str, state: str, **more: Any) -> dict[str, Any]:
        return self.wait(id, lambda row: row["observed_state"] == state, what=state, **more)

    def wait_measured(self) -> None:
        """Until nothing is being measured, so that nothing happens by itself."""
        until = time.monotonic() + WAIT_S_MAX
        while any(_is_being_measured(row) for row in self.snapshot()["deployments"]):
            if time.monotonic() > until:
                raise NotReached("every model's files are measured")
            time.sleep(POLL_S)

    def wait_operation(self, id: object, *states: str) -> dict[str, Any]:
        until = time.monotonic() + WAIT_S_MAX
        while (row := self.operation(id))["state"] not in states:
            if time.monotonic() > until:
                raise NotReached(f"{states}: {row}")
            time.sleep(POLL_S)
        return row

    # -- inference ---------------------------------------------------------------------------

    def infer(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """One request to the inference endpoint, with the API key."""
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(data)}"]
        lines += ["Content-Type: application/json", f"Authorization: Bearer {self.target.api_key}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        with Connection(*self.target.inference) as connection:
            connection.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
            return connection.answer()

    def chat(self, model: str, **headers: str) -> Answer:
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        return self.infer("POST", "/v1/chat/completions", body, **headers)

    # -- the end -----------------------------------------------------------------------------

    def clear(self) -> None:
        """Stop and delete everything this one made."""
        present = {row["id"] for row in self.snapshot()["deployments"]}
        left = [id for id in dict.fromkeys(self.made) if id in present]
        for id in left:
            self.accept(id, "stop")
        for id in left:
            self.wait(id, _is_empty, what="stopped")
            self.accept_delete(id)
        self.made.clear()

    def accept_delete(self, id: str) -> dict[str, Any]:
        """The receipt of a delete, once what the stop left open has ended."""
        until = time.monotonic() + WAIT_S_MAX
        while (answer := self.act(id, "delete")).status != 202:
            assert answer.code == "delete_requires_cleanup", answer.body
            if time.monotonic() > until:
                raise NotReached(f"deleted: {answer.body!r}")
            time.sleep(POLL_S)
        found: dict[str, Any] = answer.json()
        return found


def _is_being_measured(row: dict[str, Any]) -> bool:
    digest = row["checkpoint_digest"]
    return digest["state"] == "pending" and "diagnostic" not in digest


def _is_empty(row: dict[str, Any]) -> bool:
    return all(one["observed_state"] in ("stopped", "failed") for one in row["instances"])


def now_ms() -> int:
    return time.time_ns() // 1_000_000

"""Controllers and clients at random, all at once, that remember what was answered to them."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from typing import Any

import attrs

from tests.e2e.daemon import Daemon, Reply
from tests.e2e.streams import chat_stream

OFFLINE = (OSError, http.client.HTTPException)
CONTROLLERS_COUNT = 2
CLIENTS_COUNT = 2


@attrs.define
class Sent:
    """One change, as it was sent, and its answer when there was one."""

    method: str
    path: str
    body: dict[str, Any]
    key: str
    reply: Reply | None = None

    @property
    def is_accepted(self) -> bool:
        return self.reply is not None and self.reply.status == 202


@attrs.define
class Model:
    """A deployment that the workload plays with."""

    id: str
    document: dict[str, Any]


class Workload:
    """Runs until `stop`, whatever becomes of the daemon meanwhile."""

    def __init__(self, daemon: Daemon, models: list[Model], *, seed: int) -> None:
        self.daemon = daemon
        self.models = models
        self.sent: list[Sent] = []
        self.statuses: list[int] = []
        """Of chats that got a whole answer."""
        self.problems: list[str] = []
        self._seed = seed
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        work = [self._control] * CONTROLLERS_COUNT + [self._chat] * CLIENTS_COUNT
        for index, target in enumerate(work):
            rng = random.Random(self._seed * 100 + index)
            thread = threading.Thread(target=self._run, args=(target, rng), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, within_s: float = 30.0) -> None:
        """No new work; waits for what is under way."""
        self._over.set()
        for thread in self._threads:
            thread.join(within_s)
            assert not thread.is_alive(), "a client hangs"
        assert not self.problems, self.problems

    def _run(self, target: Any, rng: random.Random) -> None:
        try:
            while not self._over.is_set():
                with contextlib.suppress(*OFFLINE):
                    target(rng)
                if self.daemon.process is None or self.daemon.process.poll() is not None:
                    return
        except Exception as problem:
            self.problems.append(repr(problem))

    # -- one thing at a time -----------------------------------------------------------------

    def _control(self, rng: random.Random) -> None:
        model = rng.choice(self.models)
        path = f"/deployments/{model.id}"
        found = self._find(model)
        if found is None:
            return
        revision = int(found["revision"])
        action = rng.choice(("start", "start", "stop", "park", "replace", "preinitialize", "one"))
        if action == "replace":
            body = {"config": self._replaced(model, rng), "expected_revision": revision}
            self._send(Sent("PUT", path, body, _key(rng)))
            return
        window = {"start": "initialize_ms", "preinitialize": "request_deadline_ms"}
        within_ms = found["timeouts"][window.get(action, "stop_ms")]
        body = {
            "action": rng.choice(("start", "stop")) if action == "one" else action,
            "expected_revision": revision,
            "deadline_ms": int(time.time() * 1000) + min(within_ms, 600_000),
        }
        if action == "start" and rng.random() < 0.3:
            body["evict"] = True
        if action == "one":
            path += "/instances/0"
        self._send(Sent("POST", f"{path}/actions", body, _key(rng)))

    def _find(self, model: Model) -> dict[str, Any] | None:
        reply = self.daemon.get("/snapshot")
        if reply.status != 200:
            return None
        found: list[dict[str, Any]] = reply.json()["deployments"]
        return next((d for d in found if d["id"] == model.id), None)

    def _replaced(self, model: Model, rng: random.Random) -> dict[str, Any]:
        document = dict(model.document)
        if rng.random() < 0.5:
            document["instances"] = rng.choice((1, 2))
        else:
            document["request_deadline"] = rng.choice(("600s", "900s", "1200s"))
        return document

    def _send(self, sent: Sent) -> None:
        self.sent.append(sent)
        sent.reply = self.daemon.request(sent.method, sent.path, sent.body, key=sent.key)
        if sent.reply.status >= 500 and sent.reply.json()["error"]["code"] == "internal":
            self.problems.append(f"{sent}")

    def _chat(self, rng: random.Random) -> None:
        name = rng.choice(self.models).document["name"]
        if rng.random() < 0.3:
            with chat_stream(self.daemon, name, max_tokens=20) as stream:
                stream.connection.timeout = 5.0
                stream.read(rng.choice((1, 2, None)))
            return
        reply = self.daemon.chat(name, max_tokens=rng.choice((1, 4)))
        self.statuses.append(reply.status)
        code = reply.json().get("code")
        if reply.status != 200:
            self._over.wait(0.02)
        if reply.status >= 500 and code not in ("unavailable", "activation_failed", "engine_error"):
            self.problems.append(f"{reply}")


def _key(rng: random.Random) -> str:
    return f"work-{rng.getrandbits(64):x}"


def replay(daemon: Daemon, sent: Sent, *, attempts_max: int = 100) -> Reply:
    """The same change again; what is answered once nothing asks to retry."""
    reply = daemon.request(sent.method, sent.path, sent.body, key=sent.key)
    for _ in range(attempts_max):
        if reply.status != 429:
            break
        time.sleep(0.02)
        reply = daemon.request(sent.method, sent.path, sent.body, key=sent.key)
    return reply


def check_accepted(daemon: Daemon, sent: list[Sent]) -> None:
    """What was accepted is answered as before, and its operation is on record."""
    known = {operation["id"] for operation in daemon.snapshot()["operations"]}
    for one in sent:
        if not one.is_accepted:
            continue
        assert one.reply is not None
        again = replay(daemon, one)
        assert again.status == 202, f"{one} is now {again}"
        first, second = (dict(json.loads(r.body)) for r in (one.reply, again))
        if one.body.get("evict"):
            for receipt in (first, second):
                receipt.pop("victims")
                receipt.pop("switch_id")
            assert first == second, one
        else:
            assert one.reply.body == again.body, one
        operation = first["operation_id"]
        assert operation is None or operation in known, f"{operation} of {one} is lost"

"""A real daemon as a child process, with clients for both of its listeners. Loopback only."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from capyctl.simulated.checkpoint_writer import write_checkpoint

READY_S_MAX = 20.0
WAIT_S_MAX = 30.0
POLL_S = 0.02
MIB = 1 << 20


class NotReached(AssertionError):
    """Something did not come to pass in time; says what was seen last."""


def wait_until(check: Callable[[], Any], *, what: str, within_s: float = WAIT_S_MAX) -> Any:
    """The first true value of ``check``, polled; bounded in time."""
    until = time.monotonic() + within_s
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > until:
            raise NotReached(f"{what}: not within {within_s} s")
        time.sleep(POLL_S)


@attrs.define
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@attrs.define
class Daemon:
    """One state root and the daemon over it; may be killed and started again."""

    root: Path
    simulate: str | None = "gpus=1,memory=24GiB,ram=64GiB"
    flags: dict[str, str] = attrs.field(factory=dict)
    env: dict[str, str] = attrs.field(factory=dict)
    process: subprocess.Popen[bytes] | None = None
    starts_count: int = 0

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def log_path(self) -> Path:
        return self.root / "daemon.log"

    def start(self) -> Daemon:
        """Start it and wait until both listeners answer."""
        address = self.state / "run" / "management-address"
        address.unlink(missing_ok=True)
        self.models.mkdir(parents=True, exist_ok=True)
        flags = {
            "--state-dir": str(self.state),
            "--models-root": str(self.models),
            "--listen": f"127.0.0.1:{free_port()}",
            "--management-listen": "127.0.0.1:0",
            "--engine-ports": "18100-18399",
            **self.flags,
        }
        program = (
            "import sys, json; from capyctl.daemon.serve import run_standalone; "
            "a = json.loads(sys.argv[1]); "
            "sys.exit(run_standalone(a['flags'], [], a['simulate'], 'json'))"
        )
        stated = json.dumps({"flags": flags, "simulate": self.simulate})
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, stated],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "XDG_CONFIG_HOME": str(self.root / "config"), **self.env},
                cwd=Path(__file__).parents[2],
            )
        self.starts_count += 1
        self._inference = int(flags["--listen"].rpartition(":")[2])
        wait_until(
            lambda: self._answers(address),
            what=f"the daemon is ready ({self.log_path.read_text()[-2000:]})",
            within_s=READY_S_MAX,
        )
        return self

    _inference: int = attrs.field(default=0, init=False)

    def _answers(self, address: Path) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise NotReached(f"the daemon exited: {self.log_path.read_text()[-3000:]}")
        if not address.exists() or not address.read_text().endswith("\n"):
            return False
        with contextlib.suppress(OSError):
            return self.get("/snapshot").status in (200, 429)
        return False

    def kill(self) -> None:
        """SIGKILL, as a crash; engines stay."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)
        self.process = None

    def stop(self, within_s: float = 40.0) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(within_s)
        self.process = None
        return status

    # -- management --------------------------------------------------------------------------

    @property
    def token(self) -> str:
        return self._credential("admin_token")

    @property
    def key(self) -> str:
        return self._credential("api_key")

    def _credential(self, name: str) -> str:
        text = (self.state / "identity" / "credentials").read_text()
        return next(
            line.partition(": ")[2] for line in text.splitlines() if line.startswith(name)
        )

    @property
    def management_port(self) -> int:
        text = (self.state / "run" / "management-address").read_text()
        return int(text.strip().rpartition(":")[2])

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        within_s: float = 30.0,
    ) -> Reply:
        """One management request."""
        headers = {"Authorization": f"Bearer {self.token}"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        if key is not None:
            headers["Idempotency-Key"] = key
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.management_port, timeout=within_s
        )
        with contextlib.closing(connection):
            connection.request(method, "/management/v1" + path, data, headers)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def snapshot(self) -> dict[str, Any]:
        reply = wait_until(
            lambda: (r := self.get("/snapshot")).status == 200 and r, what="a snapshot"
        )
        found: dict[str, Any] = reply.json()
        return found

    def deployment(self, id: str) -> dict[str, Any] | None:
        return next((d for d in self.snapshot()["deployments"] if d["id"] == id), None)

    def change(self, method: str, path: str, body: Any, *, key: str) -> dict[str, Any]:
        """One accepted change; retried as a controller does while `retryable` is true."""
        for _ in range(400):
            reply = self.request(method, path, body, key=key)
            if reply.status == 202:
                found: dict[str, Any] = reply.json()
                return found
            error = reply.json()["error"]
            if not error["retryable"]:
                raise AssertionError(f"{method} {path}: {reply.status} {error}")
            time.sleep(0.05)
        raise NotReached(f"{method} {path}: still {error}")

    def create(self, name: str, weights_mib: int = 4096, **document: Any) -> str:
        """A deployment of a fresh simulated checkpoint; its id."""
        family = document.setdefault("engine", "vllm")
        if not (self.models / name).exists() and self.simulate is not None:
            write_checkpoint(
                self.models / name,
                weights_bytes=weights_mib * MIB,
                format="gguf" if family == "llamacpp" else "safetensors",
            )
        config = {"name": name, "model": name, **document}
        body = {"config": config, "activate": False}
        id: str = self.change("POST", "/deployments", body, key=f"create-{name}")[
            "deployment_id"
        ]
        return id

    def act(self, id: str, action: str, *, key: str | None = None, **more: Any) -> Reply:
        """One action on the current revision, with a deadline of its window."""
        found = self.deployment(id)
        assert found is not None
        window = {"start": "initialize_ms", "preinitialize": "request_deadline_ms"}
        within_ms = found["timeouts"][window.get(action, "stop_ms")]
        body = {
            "action": action,
            "expected_revision": int(found["revision"]),
            "deadline_ms": int(time.time() * 1000) + within_ms,
            **more,
        }
        key = key or f"{action}-{id}-{time.time_ns()}"
        return self.request("POST", f"/deployments/{id}/actions", body, key=key)

    def do(self, id: str, action: str, **more: Any) -> dict[str, Any]:
        """As :meth:`act`, retried while retryable; the receipt."""
        key = f"{action}-{id}-{time.time_ns()}"
        for _ in range(200):
            reply = self.act(id, action, key=key, **more)
            if reply.status == 202:
                found: dict[str, Any] = reply.json()
                return found
            assert reply.json()["error"]["retryable"], reply.body
            time.sleep(0.05)
            key = f"{action}-{id}-{time.time_ns()}"
        raise NotReached(f"{action}: {reply.body!r}")

    def wait_state(self, id: str, state: str, within_s: float = WAIT_S_MAX) -> dict[str, Any]:
        """Wait for an observed state of the whole deployment."""
        seen: list[Any] = [None]

        def there() -> Any:
            seen[0] = self.deployment(id)
            return seen[0] is not None and seen[0]["observed_state"] == state and seen[0]

        try:
            return wait_until(there, what=f"{id} is {state}", within_s=within_s)
        except NotReached as late:
            raise NotReached(f"{late}; seen {json.dumps(seen[0])}") from late

    # -- inference ---------------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._inference}"

    def post(
        self, path: str, body: Any, *, key: str | None = None, within_s: float = 60.0
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self._inference, timeout=within_s)
        headers = {
            "Authorization": f"Bearer {key or self.key}",
            "Content-Type": "application/json",
        }
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())

    def chat(self, model: str, text: str = "Hello", **more: Any) -> Reply:
        messages = [{"role": "user", "content": text}]
        return self.post("/v1/chat/completions", {"model": model, "messages": messages, **more})

    # -- processes ---------------------------------------------------------------------------

    def engine_pids(self) -> list[int]:
        """Pids of everything that runs from this root's simulated or real engines."""
        found = []
        marker = str(self.root)
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                argv = (entry / "cmdline").read_bytes().decode(errors="replace")
                environ = (entry / "environ").read_bytes().decode(errors="replace")
                if stat[0] == "Z" or "log_relay" in argv or "latch" in argv:
                    continue
                mine = self.process is not None and int(entry.name) == self.process.pid
                engine = "engine_program" in argv or "llama-server" in argv
                if engine and not mine and (marker in environ or marker in argv):
                    found.append(int(entry.name))
        return found

    def end_everything(self) -> None:
        """Kill the daemon and each engine of this root, by pid."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None
        for _ in range(3):
            for pid in self.engine_pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    """A loopback port that nobody has now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(root: Path, **options: Any) -> Iterator[Daemon]:
    """A started daemon; at the end of the block nothing of it is left."""
    daemon = Daemon(root, **options)
    try:
        yield daemon.start()
    finally:
        daemon.end_everything()

"""A real daemon as a child process, with clients for both of its listeners. Loopback only."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from capyctl.simulated.checkpoint_writer import write_checkpoint
from tests.e2e.forking import Started, spawn

READY_S_MAX = 60.0
WAIT_S_MAX = 60.0
POLL_S = 0.02
ENGINE_PORTS_COUNT = 50
MIB = 1 << 20


PROGRAM = """
import sys, json
from capyctl.daemon.serve import run_standalone
a = json.loads(sys.argv[1])
sys.exit(run_standalone(a["flags"], a["sets"], a["simulate"], "json"))
"""


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
    simulate: str | None = "gpus=1,memory=24GiB,ram=256GiB"
    """Text of ``--simulate``, see `simulation`; None for the real machine."""
    flags: dict[str, str] = attrs.field(factory=dict)
    sets: tuple[str, ...] = ()
    """Settings as of ``--set``."""
    env: dict[str, str] = attrs.field(factory=dict)
    plain: bool = False
    """No flag at all: every setting has its default, and ``root`` is the home."""
    program: str = PROGRAM
    """What the child runs."""
    process: Started | None = None
    starts_count: int = 0
    _inference: int = attrs.field(default=8443, init=False)

    @property
    def state(self) -> Path:
        return self.root / (".local/state/capyctl" if self.plain else "state")

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def log_path(self) -> Path:
        return self.root / "daemon.log"

    @property
    def _address_path(self) -> Path:
        return self.state / "run" / "management-address"

    def spawn(self) -> Started:
        """The process, without waiting for anything."""
        self.models.mkdir(parents=True, exist_ok=True)
        stated = {"flags": self._flags(), "sets": self.sets, "simulate": self.simulate}
        env = {**os.environ, "XDG_CONFIG_HOME": str(self.root / "config"), **self.env}
        if self.plain:
            env["HOME"] = str(self.root)
            for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
                env.pop(name, None)
        with self.log_path.open("ab") as log:
            return spawn(self.program, json.dumps(stated), env, log)

    def _flags(self) -> dict[str, str]:
        if self.plain:
            return dict(self.flags)
        self._inference = free_port()
        return {
            "--state-dir": str(self.state),
            "--models-root": str(self.models),
            "--listen": f"127.0.0.1:{self._inference}",
            "--management-listen": "127.0.0.1:0",
            "--engine-ports": engine_ports(),
            **self.flags,
        }

    def start(self, within_s: float = READY_S_MAX) -> Daemon:
        """Start it and wait until both listeners answer."""
        self._address_path.unlink(missing_ok=True)
        self.process = self.spawn()
        self.starts_count += 1
        wait_until(self._answers, what="the daemon is ready", within_s=within_s)
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise NotReached(f"the daemon exited: {self.log_path.read_text()[-3000:]}")
        address = self._address_path
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
        return next(line.partition(": ")[2] for line in text.splitlines() if line.startswith(name))

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
        connection = http.client.HTTPConnection("127.0.0.1", self.management_port, timeout=within_s)
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
        key = f"create-{name}-{time.time_ns()}"
        id: str = self.change("POST", "/deployments", body, key=key)["deployment_id"]
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

    def post(self, path: str, body: Any, *, key: str | None = None) -> Reply:
        return self.ask("POST", path, json.dumps(body).encode(), key=key)

    def ask(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        *,
        key: str | None = None,
        within_s: float = 60.0,
    ) -> Reply:
        """One inference request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self._inference, timeout=within_s)
        headers = {"Authorization": f"Bearer {key or self.key}"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        with contextlib.closing(connection):
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())

    def chat(self, model: str, text: str = "Hello", **more: Any) -> Reply:
        messages = [{"role": "user", "content": text}]
        return self.post("/v1/chat/completions", {"model": model, "messages": messages, **more})

    # -- processes ---------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """Every living process of this root but the daemon itself."""
        mine = None if self.process is None else self.process.pid
        return [found for found in processes_of(str(self.root)) if found.pid != mine]

    def engines(self) -> list[Process]:
        """The leader of each engine that runs from this root."""
        return [found for found in self.processes() if found.is_engine]

    def end_everything(self) -> None:
        """Kill the daemon and all that it left, by pid; none may survive."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

        def gone() -> bool:
            left = self.processes()
            for one in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            return not left

        wait_until(gone, what=f"nothing of {self.root} runs", within_s=10.0)


@attrs.frozen(kw_only=True)
class Process:
    pid: int
    group: int
    argv: str

    @property
    def is_engine(self) -> bool:
        """The leader of an engine, past its latch."""
        engine = "engine_program" in self.argv or "llama-server" in self.argv
        latched = "latch" in self.argv or "log_relay" in self.argv
        return engine and not latched and self.pid == self.group


def processes_of(marker: str) -> list[Process]:
    """Living processes, zombies left out, with ``marker`` in their command or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            argv = (entry / "cmdline").read_bytes()
            if marker.encode() not in argv + (entry / "environ").read_bytes():
                continue
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if state in "ZX":
                continue
            text = argv.decode(errors="replace").replace("\0", " ")
            found.append(Process(pid=int(entry.name), group=int(group), argv=text))
    return found


def simulation(**document: Any) -> str:
    """Text of ``--simulate``: one 24 GiB card, plenty of RAM and quick engines, but for what
    ``document`` states."""
    engines = {"load_s": 0.05, "park_s": 0.02, "wake_s": 0.02, **document.pop("engines", {})}
    whole = {"gpus": 1, "memory": "24GiB", "ram": "256GiB", **document, "engines": engines}
    return json.dumps(whole)


def _port_ranges() -> Iterator[int]:
    """First ports of ranges below the ephemeral ones, in an order of this run's own. The workers
    of one run share them out: on a range of two daemons an engine could lose its port."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers_count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    firsts = list(range(20_000, 32_000, ENGINE_PORTS_COUNT))
    random.Random(run).shuffle(firsts)
    return itertools.cycle(firsts[worker::workers_count])


_firsts = _port_ranges()


def engine_ports() -> str:
    """A range that no other daemon of this run has, until it comes round again."""
    first = next(_firsts)
    return f"{first}-{first + ENGINE_PORTS_COUNT - 1}"


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
    except BaseException:
        print(f"-- the end of {daemon.log_path}:\n{_end_of_log(daemon.log_path)}")
        raise
    finally:
        daemon.end_everything()


def _end_of_log(path: Path) -> str:
    """What a reader looks for first: all but the requests."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join([line for line in lines if '"event": "request"' not in line][-40:])

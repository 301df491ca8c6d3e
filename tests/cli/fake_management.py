"""A management API on loopback that says what it is told, and surroundings that never wait."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs

from capyctl.cli.main import main
from capyctl.cli.surroundings import Surroundings

TOKEN = "t" * 43
API_KEY = "k" * 43
ID = "01M5E0MPXN61STKHGZ6BTEFVM3"
OPERATION = "01M5E0PW0GTNAZM76H039K3YFY"
BEGAN_MS = 1_792_546_000_000


@attrs.frozen
class Received:
    method: str
    path: str
    key: str | None
    body: bytes

    @property
    def fields(self):
        return json.loads(self.body)


@attrs.frozen
class Says:
    """One answer to a change. ``drops`` closes the connection after it was read instead."""

    status: int = 202
    fields: object = None
    drops: bool = False


def refusal(code, status, *, retryable=False, message="because", details=None):
    error = {
        "code": code,
        "details": details or {},
        "message": message,
        "operation_id": None,
        "retryable": retryable,
    }
    return Says(status, {"api_version": "1", "error": error})


def receipt(**changes):
    return {
        "api_version": "1",
        "deployment_id": ID,
        "joined": False,
        "operation_id": OPERATION,
        "revision": "1",
        **changes,
    }


def deployment(state="stopped", *, instances=None, **changes):
    """An entry of the snapshot, as the API shows it."""
    rows = instances or [instance(0, state)]
    return {
        "id": ID,
        "name": "my-model",
        "revision": "3",
        "observed_state": state,
        "desired_instances": len(rows),
        "ready_instances": sum(row["observed_state"] == "ready" for row in rows),
        "conditions": [],
        "instances": rows,
        "timeouts": {
            "request_deadline_ms": 1_800_000,
            "initialize_ms": 610_000,
            "wake_ms": 65_000,
            "stop_ms": 900_000,
        },
        "checkpoint_digest": {"state": "recorded", "host_id": "box", "provisional": False},
        **changes,
    }


def instance(index, state, **changes):
    return {
        "index": index,
        "host_id": "box",
        "devices": [{"id": "gpu0"}],
        "observed_state": state,
        "lifecycle": "active",
        "operator_stopped": False,
        **changes,
    }


def snapshot(*deployments, operations=()):
    return {
        "api_version": "1",
        "cursor": "01M5E0M1C4VQT1DXDZNMJ75NRN:12",
        "session_epoch": "1",
        "deployments": list(deployments),
        "routes": [],
        "operations": list(operations),
    }


def operation(state, id=OPERATION, **changes):
    return {"id": id, "deployment_id": ID, "action": "initialize", "state": state, **changes}


class FakeManagement:
    """Snapshots are served in turn, the last one for ever; answers likewise, then receipts."""

    def __init__(self):
        self.snapshots = [snapshot(deployment())]
        self.answers = []
        self.reads = {}
        self.received = []
        self.seen_tokens = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def changes(self):
        return [one for one in self.received if one.method != "GET"]

    def _say(self, received):
        if received.method != "GET":
            return self.answers.pop(0) if self.answers else Says(202, receipt())
        if received.path.endswith("/snapshot"):
            found = self.snapshots.pop(0) if len(self.snapshots) > 1 else self.snapshots[0]
            return found if isinstance(found, Says) else Says(200, found)
        return self.reads.get(received.path, refusal("not_found", 404))

    def _handler(fake):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                size = int(self.headers.get("Content-Length") or 0)
                key = self.headers.get("Idempotency-Key")
                received = Received(self.command, self.path, key, self.rfile.read(size))
                fake.received.append(received)
                fake.seen_tokens.add(self.headers.get("Authorization"))
                says = fake._say(received)
                if says.drops:
                    self.close_connection = True
                    return
                is_text = isinstance(says.fields, bytes)
                body = says.fields if is_text else json.dumps(says.fields).encode()
                self.send_response(says.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_PUT = do_GET

            def log_message(self, *_):
                pass

        return Handler


@attrs.define
class Clock:
    """Time that passes only where something sleeps."""

    now_s: float = 0.0
    slept: list = attrs.field(factory=list)
    on_sleep: object = None

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds
        if self.on_sleep is not None:
            self.on_sleep()


@attrs.frozen
class Ran:
    status: int
    out: str
    err: str

    @property
    def value(self):
        return json.loads(self.out)

    @property
    def errors(self):
        """Standard error without the request's identity and the waiting."""
        said = self.err.splitlines()
        return [line for line in said if not line.startswith(("Request identity", "waiting"))]

    @property
    def waits(self):
        return [line for line in self.err.splitlines() if line.startswith("waiting")]

    @property
    def request_id(self):
        return self.err.split("Request identity: ")[1].split()[0]


class Bench:
    """Runs commands against a fake role under a state root."""

    def __init__(self, state_root, address=None, *, environ=None):
        self.state_root = state_root
        self.clock = Clock()
        self.environ = {"HOME": str(state_root.parent), **(environ or {})}
        identity = state_root / "identity"
        identity.mkdir(mode=0o700, parents=True)
        self.write_credentials(TOKEN)
        if address is not None:
            (state_root / "run").mkdir()
            (state_root / "run/management-address").write_text(address + "\n")

    def write_credentials(self, token):
        path = self.state_root / "identity/credentials"
        path.write_text(f"api_key: {API_KEY}\nadmin_token: {token}\n")

    def run(self, *words, out=None, input=""):
        out, err = out or io.StringIO(), io.StringIO()
        here = Surroundings(
            environ=self.environ,
            out=out,
            err=err,
            input=io.StringIO(input),
            monotonic_s=lambda: self.clock.now_s,
            wall_ms=lambda: BEGAN_MS + round(self.clock.now_s * 1000),
            sleep=self.clock.sleep,
        )
        status = main(["--state-dir", str(self.state_root), *words], here)
        return Ran(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def bench_of(state_root):
    with FakeManagement() as management:
        yield management, Bench(state_root, management.address)

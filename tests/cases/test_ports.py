"""Ports of engines: a stranger on one is never taken for an engine, and another one is found."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.cases.scenes import ready, seen
from tests.e2e.daemon import Daemon, running, simulation, wait_until

pytestmark = pytest.mark.slow


class Stranger(http.server.BaseHTTPRequestHandler):
    """Answers everything that an engine is asked before it is believed, with any key."""

    protocol_version = "HTTP/1.1"
    asked: list[str]

    def do_GET(self) -> None:
        self._tell({"data": [{"id": "a", "object": "model"}]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        type(self).asked.append(body.decode())
        self._tell({"choices": [{"message": {"content": "I am somebody else"}}]})

    def _tell(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Squatter(threading.Thread):
    """Listens on the port of each launch that it sees, before the engine does."""

    def __init__(self, daemon: Daemon, *, launches: int) -> None:
        super().__init__(daemon=True)
        self._daemon = daemon
        self._launches = launches
        self._over = threading.Event()
        self._servers: list[http.server.ThreadingHTTPServer] = []
        self.asked: list[str] = []

    @property
    def ports(self) -> list[int]:
        return [server.server_port for server in self._servers]

    def run(self) -> None:
        while not self._over.is_set() and len(self._servers) < self._launches:
            for one in self._daemon.engines():
                found = re.search(r"--port[ =](\d+)", one.argv)
                if found and int(found[1]) not in self.ports:
                    self._listen(int(found[1]))
            time.sleep(0.01)

    def _listen(self, port: int) -> None:
        handler = type("Here", (Stranger,), {"asked": self.asked})
        with contextlib.suppress(OSError):
            server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
            self._servers.append(server)
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def leave(self) -> None:
        self._over.set()
        self.join(10)
        for server in self._servers:
            server.shutdown()
            server.server_close()


@contextlib.contextmanager
def squatting(daemon: Daemon, *, launches: int) -> Iterator[Squatter]:
    squatter = Squatter(daemon, launches=launches)
    squatter.start()
    try:
        yield squatter
    finally:
        squatter.leave()


def test_a_port_that_was_taken_before_the_engine_had_it_is_given_up_for_another(tmp_path):
    """Twice a stranger is faster, and answers as the engine would; the third port is free."""
    slow = simulation(engines={"load_s": 0.8})
    with running(tmp_path, simulate=slow) as daemon:
        daemon.create("a", 1024)
        with squatting(daemon, launches=2) as squatter:
            reply = daemon.chat("a", max_tokens=4)
        launched = seen(daemon, "initialize_armed")
    assert reply.status == 200
    assert "somebody else" not in reply.body.decode()
    assert squatter.asked == []
    assert len(launched) == 3


def test_a_port_that_is_always_taken_is_said(tmp_path):
    slow = simulation(engines={"load_s": 0.8})
    with running(tmp_path, simulate=slow) as daemon:
        a = daemon.create("a", 1024)
        with squatting(daemon, launches=9) as squatter:
            reply = daemon.chat("a", max_tokens=4)
        failed = daemon.deployment(a)
        launched = seen(daemon, "initialize_armed")
        left = daemon.engines()
    assert (reply.status, reply.json()["code"]) == (500, "activation_failed")
    assert squatter.asked == []
    assert failed["observed_state"] == "failed"
    assert failed["instances"][0]["last_error"].startswith("port_conflict: ")
    assert str(squatter.ports[-1]) in failed["instances"][0]["last_error"]
    assert len(launched) == 3
    assert left == []


def test_starting_again_at_once_never_meets_its_own_old_port(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        (a,) = ready(daemon, "a", residency="restart_only")
        for _ in range(5):
            assert daemon.chat("a", max_tokens=1).status == 200
            daemon.do(a, "stop")
            daemon.wait_state(a, "stopped")
            daemon.do(a, "start")
            daemon.wait_state(a, "ready")
        failed = seen(daemon, "initialize_failed_released")
    assert failed == []


def test_two_daemons_with_one_range_get_along(tmp_path):
    """Each sees the other's engines as strangers, and finds ports of its own."""
    with running(tmp_path / "one", simulate=simulation()) as one:
        with running(tmp_path / "other", simulate=simulation()) as other:
            for daemon in (one, other):
                daemon.create("a", 1024)
            replies = [daemon.chat("a", max_tokens=1).status for daemon in (one, other)]
            ports = {
                re.search(r"--port[ =](\d+)", e.argv)[1] for d in (one, other) for e in d.engines()
            }
            other.stop()
            again = one.chat("a", max_tokens=1).status
    assert replies == [200, 200]
    assert len(ports) == 2
    assert again == 200


def test_a_range_that_strangers_hold_is_named(tmp_path):
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(socket.socket())
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        flags = {"--engine-ports": f"{port}-{port}"}
        daemon = stack.enter_context(running(tmp_path, simulate=simulation(), flags=flags))
        a = daemon.create("a", 1024)
        daemon.do(a, "start")
        found = wait_until(lambda: reason(daemon, a), what="it is said")
    assert f"no free port in {port}-{port}" in found


def reason(daemon, id):
    return daemon.deployment(id)["latest_operation"].get("reason")

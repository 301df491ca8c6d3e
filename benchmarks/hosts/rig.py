"""A real server process and one process full of hosts, with what a measurement asks of them."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from capyctl.link.bootstrap import CONNECTIONS_PER_S_MAX
from tests.e2e.daemon import NotReached, wait_until
from tests.e2e.multi.fleet import Server
from tests.e2e.streams import Crowd

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
LATE_S_MAX = 180.0
LOAD_BODY_BYTES = 500
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KEYS = itertools.count()


@attrs.define(eq=False)
class FleetProcess:
    """The process of `benchmarks.hosts.fleet`."""

    child: subprocess.Popen[str]

    @classmethod
    def started(cls, folder: Path, load_s: float) -> FleetProcess:
        folder.mkdir()
        command = [sys.executable, "-m", "benchmarks.hosts.fleet", str(folder), str(load_s)]
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))

    def do(self, *command: Any) -> Any:
        """See `fleet.Fleet`: the name of a command, and its arguments."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps(command) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError(f"the fleet ended in {command[0]}: {self.child.wait(10)}")
        return json.loads(line)

    def end(self) -> None:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.close()
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.child.stdout.close()


@attrs.define(eq=False)
class Client:
    """One kept connection to the management API."""

    server: Server
    token: str = attrs.field(init=False)
    _connection: http.client.HTTPConnection | None = None

    def __attrs_post_init__(self) -> None:
        self.token = self.server.token

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """A change gets a fresh key."""
        headers = {"Authorization": f"Bearer {self.token}"}
        data = None
        if body is not None:
            headers |= {"Content-Type": "application/json"}
            headers["Idempotency-Key"] = f"bench-{next(_KEYS)}-{time.time_ns()}"
            data = json.dumps(body).encode()
        if self._connection is None:
            port = self.server.management_port
            self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
        self._connection.request(method, "/management/v1" + path, data, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def change(self, method: str, path: str, body: Any) -> Any:
        """An accepted change, asked again while it is refused for the moment."""
        until_s = time.monotonic() + LATE_S_MAX
        while True:
            status, data = self.ask(method, path, body)
            found = json.loads(data)
            if status == 202:
                return found
            assert found["error"]["retryable"], data
            if time.monotonic() > until_s:
                raise NotReached(f"{method} {path}: still {found}")
            time.sleep(0.02)

    def get(self, path: str) -> Any:
        status, data = self.ask("GET", path)
        assert status == 200, data
        return json.loads(data)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


@attrs.define(eq=False)
class Rig:
    """Joined hosts, and deployments on them."""

    server: Server
    fleet: FleetProcess
    names: list[str] = attrs.field(factory=list)
    """Of the hosts."""
    host_ids: dict[str, str] = attrs.field(factory=dict)
    models: dict[str, str] = attrs.field(factory=dict)
    """Ids of the deployments, by their names."""
    client: Client = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.client = Client(self.server)

    # -- what is asked --------------------------------------------------------------------------

    def cursor(self) -> str:
        """After the last event so far."""
        found: str = self.client.get("/snapshot")["cursor"]
        return found

    def prepared_at(self, name: str, after_s: float) -> float | None:
        """When a host was asked for a launch of it, if that was after then; monotonic."""
        at_s: float | None = self.fleet.do("prepared_at", self.models[name])
        return at_s if at_s is not None and at_s > after_s else None

    def states(self) -> dict[str, str]:
        """Of each deployment, by name."""
        return {
            one["name"]: one["observed_state"]
            for one in self.client.get("/snapshot")["deployments"]
        }

    def models_on(self, host: str) -> list[str]:
        """Names of the deployments with an instance on this host."""
        id = self.host_ids[host]
        return [
            one["name"]
            for one in self.client.get("/snapshot")["deployments"]
            if any(instance["host_id"] == id for instance in one["instances"])
        ]

    def act(self, name: str, action: str, client: Client | None = None) -> float:
        """Send an action; the monotonic time at which it was sent."""
        body = {
            "action": action,
            "expected_revision": 1,
            "deadline_ms": int(time.time() * 1000) + 600_000,
        }
        sent_s = time.monotonic()
        path = f"/deployments/{self.models[name]}/actions"
        (client or self.client).change("POST", path, body)
        return sent_s

    def start_all(self, names: Sequence[str]) -> None:
        """By two clients side by side: so many changes are taken at a time."""

        def work(mine: Sequence[str]) -> None:
            client = Client(self.server)
            for name in mine:
                self.act(name, "start", client)
            client.close()

        with Crowd(2) as crowd:
            working = [crowd.do(work, names[first::2]) for first in range(2)]
            for one in working:
                one.result(LATE_S_MAX)

    def wait_states(self, state: str, names: Sequence[str], within_s: float = LATE_S_MAX) -> float:
        """Until all of these show it; the monotonic time. Looks four times a second."""
        until_s = time.monotonic() + within_s
        while True:
            states = self.states()
            now_s = time.monotonic()
            others = {name: states[name] for name in names if states[name] != state}
            if not others:
                return now_s
            if now_s > until_s:
                some = dict(list(others.items())[:3])
                raise NotReached(f"{len(others)} of {len(names)} are not {state}, as {some}")
            time.sleep(0.25)

    def restarted(self) -> float:
        """Kill the server, and start it again; seconds until it answers."""
        self.server.kill()
        self.client.close()
        self.client = Client(self.server)
        began_s = time.monotonic()
        self.server.start()
        return time.monotonic() - began_s

    # -- set-up ---------------------------------------------------------------------------------

    def join(self, count: int) -> float:
        """So many hosts are invited and join, one after the other. Seconds each took.

        Not faster than a server takes them: further connections it closes.
        """
        took_s = 0.0
        for number in range(len(self.names), len(self.names) + count):
            name = f"host-{number:03}"
            began_s = time.monotonic()
            invited = self.client.change("POST", "/invitations", {"name": name})
            self.host_ids[name] = self.fleet.do("join", invited["document"])
            one_s = time.monotonic() - began_s
            took_s += one_s
            self.names.append(name)
            time.sleep(max(0.0, 1.25 / CONNECTIONS_PER_S_MAX - one_s))
        return took_s / count

    def create(self, each: int, *, anywhere: bool = False) -> float:
        """So many deployments for each host; ``anywhere``: any host may have any of them.

        Seconds until all are measured.
        """
        began_s = time.monotonic()
        for host in self.names:
            for number in range(each):
                name = f"model-{host[-3:]}-{number}"
                config = {"name": name, "engine": "vllm", "model": name}
                if not anywhere:
                    config["placement"] = {"hosts": [host]}
                body = {"config": config, "activate": False}
                self.models[name] = self.client.change("POST", "/deployments", body)[
                    "deployment_id"
                ]
        wait_until(self._all_measured, what="all are measured", within_s=LATE_S_MAX)
        return time.monotonic() - began_s

    def _all_measured(self) -> bool:
        time.sleep(0.25)
        every = self.client.get("/snapshot")["deployments"]
        return all(one["checkpoint_digest"]["state"] == "recorded" for one in every)

    # -- what is measured -----------------------------------------------------------------------

    def cpu_s(self) -> float:
        """Processor seconds of the server, threads that have ended included."""
        assert self.server.process is not None
        stat = Path(f"/proc/{self.server.process.pid}/stat").read_text()
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / _TICKS_PER_S

    def core_ratio(self, seconds: float) -> float:
        """The server's share of one core, over so long, while nothing is asked of it here."""
        before_s, began_s = self.cpu_s(), time.monotonic()
        time.sleep(seconds)
        return (self.cpu_s() - before_s) / (time.monotonic() - began_s)

    def rss_mib(self) -> float:
        assert self.server.process is not None
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def took_ms(self, path: str, count: int) -> list[float]:
        """Milliseconds of each of so many reads, one after the other."""
        found = []
        for _ in range(count):
            began_s = time.perf_counter()
            status, data = self.client.ask("GET", path)
            found.append((time.perf_counter() - began_s) * 1000)
            assert status == 200, data
        return found

    def load(self, program: Path, clients: int, seconds: float) -> dict[str, float]:
        """What `benchmarks/relay/load.c` tells of requests to the first model."""
        port = self.server.base_url.rpartition(":")[2]
        numbers = (port, clients, seconds, LOAD_BODY_BYTES, 0, 0, 0)
        command = [str(program), *map(str, numbers), self.server.key, next(iter(self.models))]
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + 60, check=True
        )
        found: dict[str, float] = json.loads(ran.stdout)
        return found

    def chats_ms(self, names: Sequence[str]) -> list[float]:
        """Milliseconds of a request to each of these models, one after the other."""
        found = []
        port = int(self.server.base_url.rpartition(":")[2])
        headers = {"Authorization": f"Bearer {self.server.key}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30.0)
        with contextlib.closing(connection):
            for name in names:
                data = json.dumps({"model": name, **CHAT}).encode()
                began_s = time.perf_counter()
                connection.request("POST", "/v1/chat/completions", data, headers)
                answer = connection.getresponse()
                body = answer.read()
                found.append((time.perf_counter() - began_s) * 1000)
                assert answer.status == 200, body
        return found


@contextlib.contextmanager
def rig(
    root: Path, *, suspend_s: float = 5.0, lost_s: float = 30.0, load_s: float = 0.0
) -> Iterator[Rig]:
    """A started server and an empty fleet; nothing of them is left at the end."""
    server = Server(root, simulate="", suspend_s=suspend_s, lost_s=lost_s)
    fleet = FleetProcess.started(root / "fleet", load_s)
    try:
        server.start()
        made = Rig(server, fleet)
        yield made
        made.client.close()
    finally:
        fleet.end()
        server.end_everything()

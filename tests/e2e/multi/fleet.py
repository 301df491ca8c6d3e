"""A server and its hosts as real processes on loopback addresses, their engines simulated."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from capyctl.cli.main import main
from capyctl.cli.surroundings import Surroundings
from tests.e2e.daemon import (
    Daemon,
    NotReached,
    engine_ports,
    free_port,
    processes_of,
    simulation,
    wait_until,
)
from tests.e2e.forking import Started, spawn

SERVER_PROGRAM = """
import sys, json
from capyctl.daemon.serve_server import run_server
a = json.loads(sys.argv[1])
sys.exit(run_server(a["flags"], a["sets"], "json"))
"""
HOST_PROGRAM = """
import sys, json
from capyctl.daemon.serve_host import run_host
a = json.loads(sys.argv[1])
sys.exit(run_host(a["flags"], a["sets"], a["simulate"], "json"))
"""
SUSPEND_S = 1.5
LOST_S = 4.0
ONLINE_S_MAX = 30.0
SERVER_ADDRESS = "127.0.1.1"
HOSTS_MAX = 16


@attrs.define
class Server(Daemon):
    """The server, with what `Daemon` does for its two listeners."""

    program: str = SERVER_PROGRAM
    address: str = SERVER_ADDRESS
    bootstrap: int = attrs.field(factory=free_port)
    control: int = attrs.field(factory=free_port)
    suspend_s: float = SUSPEND_S
    lost_s: float = LOST_S

    @property
    def state(self) -> Path:
        return self.root / (".local/state/capyctl" if self.plain else "server")

    @property
    def log_path(self) -> Path:
        return self.root / "server.log"

    def spawn(self) -> Started:
        self.sets = (
            f"listeners.bootstrap.bind={self.address}:{self.bootstrap}",
            f"listeners.control.bind={self.address}:{self.control}",
            f"control.heartbeat_suspend_after={self.suspend_s}s",
            f"control.heartbeat_lost_after={self.lost_s}s",
        )
        return super().spawn()

    def _flags(self) -> dict[str, str]:
        if self.plain:
            return dict(self.flags)
        if self.starts_count == 0:
            self._inference = free_port()
        return {
            "--state-dir": str(self.state),
            "--listen": f"127.0.0.1:{self._inference}",
            "--management-listen": "127.0.0.1:0",
            **self.flags,
        }

    def _credential(self, name: str) -> str:
        found = json.loads((self.state / "identity" / "server-credentials.json").read_text())
        return str(found[name])

    def hosts(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self.get("/hosts").json()["hosts"]}

    def wait_host(self, name: str, state: str, within_s: float = ONLINE_S_MAX) -> dict[str, Any]:
        """Until the server shows the host in this state."""
        seen: list[Any] = [None]

        def there() -> Any:
            seen[0] = self.hosts().get(name)
            return seen[0] is not None and seen[0]["state"] == state and seen[0]

        try:
            return wait_until(there, what=f"host {name} is {state}", within_s=within_s)
        except NotReached as late:
            raise NotReached(f"{late}; seen {json.dumps(seen[0])}") from late

    def wait_measured(self, id: str, hosts_count: int) -> None:
        """Until the files are known on so many hosts: before that, only those are placed on."""

        def there() -> bool:
            shown = self.get(f"/deployments/{id}/effective-config").json()["hosts"]
            fits = [one["effective"] for one in shown if one["effective"]]
            return len({m["host_id"] for fit in fits for m in fit["memory"]}) == hosts_count

        wait_until(there, what=f"{id} is measured on {hosts_count} hosts")

    def wait_all_ready(self, id: str, within_s: float = 60.0) -> dict[str, Any]:
        """Until every instance that is wanted serves."""

        def there() -> Any:
            found = self.deployment(id)
            assert found is not None
            return found["ready_instances"] == found["desired_instances"] and found

        found: dict[str, Any] = wait_until(there, what=f"all of {id} serve", within_s=within_s)
        return found

    def hosts_of(self, id: str) -> list[str | None]:
        """Names of the hosts of its instances, in their order."""
        names = {one["host_id"]: name for name, one in self.hosts().items()}
        found = self.deployment(id)
        assert found is not None
        rows = sorted(found["instances"], key=lambda one: one["index"])
        return [names.get(one["host_id"]) for one in rows]


@attrs.define
class Host:
    """One state root of a host, and the process over it."""

    root: Path
    """Of the fleet."""
    name: str
    address: str
    simulate: str
    port: int = attrs.field(factory=free_port)
    ports: str = attrs.field(factory=engine_ports)
    sets: tuple[str, ...] = ()
    program: str = HOST_PROGRAM
    process: Started | None = None

    @property
    def state(self) -> Path:
        return self.root / f"host-{self.name}"

    @property
    def log_path(self) -> Path:
        return self.root / f"host-{self.name}.log"

    @property
    def document(self) -> Path:
        return self.state / "config" / "host.yaml"

    def log(self) -> list[dict[str, Any]]:
        lines = self.log_path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def under(self) -> list[str]:
        """Words of a command that the process is run by."""
        return []

    def start(self) -> Host:
        """Start it, without waiting for anything."""
        flags = {
            "--state-dir": str(self.state),
            "--models-root": str(self.root / "models"),
            "--engine-ports": self.ports,
        }
        stated = {"flags": flags, "sets": self.sets, "simulate": self.simulate}
        with self.log_path.open("ab") as log:
            env = {**os.environ, "XDG_CONFIG_HOME": str(self.root / "config")}
            self.process = spawn(self.program, json.dumps(stated), env, log, under=self.under())
        return self

    def kill(self) -> None:
        """SIGKILL, as a crash; engines stay."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)
        self.process = None

    def stop(self, within_s: float = 40.0) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait_ended(within_s)

    def wait_ended(self, within_s: float = 20.0) -> int:
        """The exit status of a role that ends by itself."""
        assert self.process is not None
        status = self.process.wait(within_s)
        self.process = None
        return status

    def freeze(self) -> None:
        """As a host whose link is half open: nothing is read, nothing is sent."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def engines(self) -> dict[int, str]:
        """Leaders of engines, by pid, with their command lines."""
        found = processes_of(str(self.state))
        return {one.pid: one.argv for one in found if one.is_engine}


@attrs.define
class Fleet:
    """A server and hosts below one folder; nothing of them is left at the end."""

    root: Path
    server: Server
    hosts: dict[str, Host] = attrs.field(factory=dict)

    def add(
        self, name: str, *, online: bool = True, program: str = HOST_PROGRAM, **simulated: Any
    ) -> Host:
        """Document, invitation, join and start of one more host."""
        host = self.new(name, program=program, **simulated)
        self.prepare(host)
        host.start()
        if online:
            self.server.wait_host(name, "online")
        return host

    def new(self, name: str, *, program: str = HOST_PROGRAM, **simulated: Any) -> Host:
        """One with an address of its own; nothing of it is there yet."""
        address = f"127.0.1.{10 + len(self.hosts)}"
        return Host(self.root, name, address, simulation(**simulated), program=program)

    def prepare(self, host: Host) -> None:
        """Document, invitation and join."""
        self.init(host)
        self.join(host)

    def init(self, host: Host, *, called: str | None = None) -> None:
        """Its document, with the name it is called by there."""
        self.hosts[host.name] = host
        assert len(self.hosts) <= HOSTS_MAX
        self.cli(
            host,
            *("init", "host", "--name", called or host.name, "--simulate", host.simulate),
            *("--set", f"ingress.bind={host.address}:{host.port}"),
            *("--set", f"ingress.address={host.address}:{host.port}"),
        )

    def invite(self, host: Host, *words: str) -> Path:
        """A join file for it."""
        file = self.root / f"{host.name}-{len(list(self.root.glob('*.join')))}.join"
        self.on_server("invite", "host", host.name, "--output", str(file), *words)
        return file

    def join(self, host: Host, *, recover: bool = False) -> None:
        """Invite it on the server, and join with the file."""
        again = ("--recover",) if recover else ()
        file = self.invite(host, *again)
        self.cli(host, "join", "host", "--join-file", str(file), *again)

    def on_server(self, *words: str, status: int = 0) -> Any:
        """A command on the server; its JSON."""
        return run_command(self.server.state, *words, status=status)

    def cli(self, host: Host, *words: str, status: int = 0) -> Any:
        """A command on a host."""
        return run_command(host.state, *words, status=status)

    def show_logs(self) -> None:
        for path in (self.server.log_path, *(host.log_path for host in self.hosts.values())):
            print(f"-- the end of {path}:\n{_end_of(path)}")

    def end(self) -> None:
        for host in self.hosts.values():
            if host.process is not None:
                host.process.kill()
                host.process.wait(10)
                host.process = None
        self.server.end_everything()


def run_command(state: Path, *words: str, status: int = 0) -> Any:
    """The command in this process; what it printed, or its error, as JSON."""
    out, err = io.StringIO(), io.StringIO()
    environ = {"HOME": str(state.parent), "XDG_CONFIG_HOME": str(state.parent / "config")}
    here = Surroundings(environ=environ, out=out, err=err)
    found = main([*words, "--state-dir", str(state), "--json"], here)
    assert found == status, f"{words}: {found}\n{out.getvalue()}{err.getvalue()}"
    text = out.getvalue() if status == 0 else err.getvalue().splitlines()[-1]
    return json.loads(text)


@contextlib.contextmanager
def fleet(
    root: Path, *names: str, plain: bool = False, server: Server | None = None, **simulated: Any
) -> Iterator[Fleet]:
    """A started server with hosts of these names, all online."""
    made = Fleet(root, server or Server(root, simulate="", plain=plain))
    try:
        made.server.start()
        for name in names:
            made.add(name, online=False, **simulated)
        for name in names:
            made.server.wait_host(name, "online")
        yield made
    except BaseException:
        made.show_logs()
        raise
    finally:
        made.end()


def _end_of(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join([line[:2000] for line in lines if '"event": "request"' not in line][-30:])

"""Run inside `unshare -rn`: a server and hosts with addresses and networks of their own.

A bridge with the server's address; each host is in a network namespace of its own behind a pair of
virtual cables, which can be cut and put together again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs

from capyctl.simulated.checkpoint_writer import write_checkpoint
from tests.e2e.daemon import wait_until
from tests.e2e.multi import fleet as on_loopback
from tests.e2e.multi.fleet import Fleet, Host, Server
from tests.e2e.page import differs, run_script, script_on_a_server

SERVER_ADDRESS = "10.77.0.1"


@attrs.define
class Network:
    """Namespaces by host, each held open by a process that sleeps."""

    holders: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict)

    def open(self) -> None:
        ip("link", "set", "lo", "up")
        ip("link", "add", "front", "type", "bridge")
        ip("addr", "add", f"{SERVER_ADDRESS}/24", "dev", "front")
        ip("link", "set", "front", "up")

    def add(self, name: str, address: str) -> None:
        holder = subprocess.Popen(["unshare", "-n", "sleep", "600"])
        self.holders[name] = holder
        outside = f"to-{name}"
        ip("link", "add", outside, "type", "veth", "peer", "name", "inside")
        wait_until(lambda: _apart(holder.pid), what="a namespace of its own", within_s=10.0)
        ip("link", "set", "inside", "netns", str(holder.pid))
        ip("link", "set", outside, "master", "front", "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{address}/24", "dev", "inside"),
            ("link", "set", "inside", "up"),
        ):
            run([*self.entering(name), "ip", *words])

    def entering(self, name: str) -> list[str]:
        return ["nsenter", "-t", str(self.holders[name].pid), "-n"]

    def cut(self, name: str) -> None:
        ip("link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        ip("link", "set", f"to-{name}", "up")

    def close(self) -> None:
        for holder in self.holders.values():
            holder.kill()
            holder.wait(10)


def ip(*words: str) -> None:
    run(["ip", *words])


def run(words: list[str]) -> None:
    subprocess.run(words, check=True, timeout=20)


def _apart(pid: int) -> bool:
    mine = Path("/proc/self/ns/net").readlink()
    return Path(f"/proc/{pid}/ns/net").readlink() != mine


@attrs.define
class FarHost(Host):
    """A host whose processes run in a namespace."""

    network: Network = attrs.field(factory=Network)

    def under(self) -> list[str]:
        return self.network.entering(self.name)


def add(made: Fleet, network: Network, name: str) -> FarHost:
    address = f"10.77.0.{10 + len(made.hosts)}"
    network.add(name, address)
    host = FarHost(made.root, name, address, on_loopback.simulation(), network=network)
    made.prepare(host)
    host.start()
    made.server.wait_host(name, "online")
    return host


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="capyctl-networks-") as folder:
        network = Network()
        network.open()
        server = Server(Path(folder), simulate="", address=SERVER_ADDRESS, plain=True)
        made = Fleet(Path(folder), server)
        try:
            made.server.start()
            for name in ("a", "b", "c"):
                add(made, network, name)
            play_the_page(made)
            play(made, network)
        except BaseException:
            made.show_logs()
            raise
        finally:
            made.end()
            network.close()


def play_the_page(made: Fleet) -> None:
    """The page's script, on the server's machine: nothing else has its ports in here."""
    write_checkpoint(made.server.models / "Qwen3-4B", weights_bytes=8 << 30)
    status, lines = run_script(script_on_a_server(made.root), made.root)
    assert status == 0, lines
    assert differs(lines) is None, lines
    assert made.server.snapshot()["deployments"] == []
    assert not any(host.engines() for host in made.hosts.values())


def play(made: Fleet, network: Network) -> None:
    """Three instances on three machines; one is cut off, one is drained, all come back."""
    server = made.server
    id = server.create("model", instances=3)
    server.wait_measured(id, 3)
    server.do(id, "start")
    server.wait_all_ready(id)
    assert sorted(map(str, server.hosts_of(id))) == ["a", "b", "c"]
    assert server.chat("model").status == 200
    before = {name: host.engines() for name, host in made.hosts.items()}

    network.cut("a")
    server.wait_host("a", "offline")
    began_s = time.monotonic()
    answers = [server.chat("model").status for _ in range(6)]
    assert answers == [200] * 6, answers
    assert time.monotonic() - began_s < 30.0
    assert made.hosts["a"].engines() == before["a"]

    network.mend("a")
    server.wait_host("a", "online")
    server.wait_all_ready(id)
    assert {name: host.engines() for name, host in made.hosts.items()} == before

    made.on_server("drain", "host", "b", "--wait")
    assert made.hosts["b"].engines() == {}
    server.wait_all_ready(id)
    assert "b" not in server.hosts_of(id)
    print("all of it came to pass", file=sys.stderr)


if __name__ == "__main__":
    main()

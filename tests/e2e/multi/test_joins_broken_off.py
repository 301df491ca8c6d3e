"""`kill -9` of either side in the middle of a join: the same command goes on, and no other's."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from capyctl.link.identity import read_identity
from tests.e2e.forking import spawn
from tests.e2e.multi.fleet import Fleet, Host, Server, fleet
from tests.e2e.multi.seams import Seams

pytestmark = pytest.mark.slow

JOIN = """
import json, sys
from capyctl.cli.main import main
from tests.e2e.multi.seams import die_at_step
a = json.loads(sys.argv[1])
die_at_step(a["step"])
sys.exit(main(a["words"]))
"""
ASKED = "capyctl.link.enrolment:Enrolment.redeem"
ISSUED = "capyctl.link.authority:Authority.issue"
STORED = "capyctl.daemon.assemble_server:Asking.__call__"
ANSWERED = "capyctl.link.bootstrap:_Exchange._send"
MOMENTS = (
    ("before", ASKED),
    ("before", ISSUED),
    ("after", ISSUED),
    ("after", STORED),
    ("before", ANSWERED),
    ("after", ANSWERED),
)
STEPS_MAX = 40
JOIN_S_MAX = 20.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    root = tmp_path_factory.mktemp("joins")
    program = Seams(root / "seams").server(ASKED, ISSUED, STORED, ANSWERED)
    with fleet(root, server=Server(root, simulate="", program=program)) as made:
        yield made


@pytest.fixture
def made(shared):
    if shared.server.process is None or shared.server.process.poll() is not None:
        shared.server.start()
    return shared


def machine(made: Fleet, name: str, *, called: str | None = None) -> Host:
    """One with a document, that has not joined."""
    host = Host(made.root, name, "127.0.1.10", "")
    made.cli(
        host,
        *("init", "host", "--name", called or name, "--simulate", ""),
        *("--set", f"ingress.bind={host.address}:{host.port}"),
        *("--set", f"ingress.address={host.address}:{host.port}"),
    )
    return host


def invited(made: Fleet, name: str, *words: str) -> Path:
    file = made.root / f"{name}-{len(list(made.root.glob('*.join')))}.join"
    made.on_server("invite", "host", name, "--output", str(file), *words)
    return file


def join(made: Fleet, host: Host, file: Path, *words: str, status: int = 0):
    return made.cli(host, "join", "host", "--join-file", str(file), *words, status=status)


def join_until_step(host: Host, file: Path, step: int, *words: str) -> int:
    """The command in a process of its own, killed there; its exit status."""
    stated = ["join", "host", "--join-file", str(file), "--state-dir", str(host.state), *words]
    env = {**os.environ, "HOME": str(host.root), "XDG_CONFIG_HOME": str(host.root / "config")}
    with (host.root / "joins.log").open("ab") as log:
        process = spawn(JOIN, json.dumps({"step": step, "words": stated}), env, log)
        return process.wait(JOIN_S_MAX)


def enrolled(made: Fleet, name: str) -> list[str]:
    return [
        one["host_id"] for one in made.server.get("/hosts").json()["hosts"] if one["name"] == name
    ]


def only_ours(host: Host) -> set[str]:
    """Files of an identity, all of which are the owner's alone."""
    folder = host.state / "identity"
    found = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert set(found.values()) <= {0o600}, found
    return set(found)


def test_a_machine_that_is_killed_at_any_step_joins_with_the_same_command(made):
    steps = 0
    while steps < STEPS_MAX:
        host = machine(made, f"step{steps}")
        file = invited(made, host.name)
        status = join_until_step(host, file, steps)
        # What is there is no identity, or a whole one: a start trips over neither.
        kept = read_identity(host.state / "identity")
        joined = enrolled(made, host.name)
        if status == 0:
            break
        assert status == -signal.SIGKILL, status
        assert kept is None or [str(kept.host)] == joined
        if joined:
            other = machine(made, f"other{steps}", called=host.name)
            assert join(made, other, file, status=2)["code"] == "invitation_used"

        told = join(made, host, file)

        assert enrolled(made, host.name) == [told["host_id"]]
        assert not joined or joined == [told["host_id"]]
        assert only_ours(host) == {"host.json", "host.pem"}
        steps += 1

    assert 10 < steps < STEPS_MAX
    host.start()
    made.server.wait_host(host.name, "online")
    assert host.stop() == 0


@pytest.mark.faults
def test_a_revoked_host_that_is_killed_at_any_step_of_its_return_is_back(made):
    """One host for all of it: each return is revoked before the next."""
    server, host = made.server, machine(made, "back")
    (id,) = {join(made, host, invited(made, host.name))["host_id"]}
    steps = 0
    while steps < STEPS_MAX:
        made.on_server("revoke", "host", host.name)
        file = invited(made, host.name, "--recover")
        status = join_until_step(host, file, steps, "--recover")
        assert read_identity(host.state / "identity").host == id
        if status == 0:
            break
        assert status == -signal.SIGKILL, status

        told = join(made, host, file, "--recover")

        assert told["host_id"] == id
        assert only_ours(host) == {"host.json", "host.pem"}
        steps += 1

    assert 10 < steps < STEPS_MAX
    again = join(made, host, file, "--recover", status=2)
    assert again["code"] == "invitation_used"
    assert "it has joined: `capyctl start host`" in again["message"]
    host.start()
    server.wait_host(host.name, "online")
    assert host.stop() == 0


@pytest.mark.parametrize(("when", "where"), MOMENTS, ids=lambda text: text.rpartition(".")[2])
def test_a_server_that_is_killed_meanwhile_lets_the_same_machine_in(made, when, where):
    server = made.server
    name = f"m{MOMENTS.index((when, where))}"
    host, other = machine(made, name), machine(made, f"other-{name}", called=name)
    file = invited(made, name)
    assert server.process is not None
    Seams(made.root / "seams").die(when, where)

    refused = join(made, host, file, status=2)

    assert refused["code"] == "server_unreachable"
    assert "run the same command again" in refused["message"]
    assert server.process.wait(10) == -signal.SIGKILL
    assert read_identity(host.state / "identity") is None
    server.start()
    let_in = enrolled(made, name)
    assert len(let_in) == (0 if where in (ASKED, ISSUED) else 1)
    if let_in:
        assert join(made, other, file, status=2)["code"] == "invitation_used"
    told = join(made, host, file)
    assert enrolled(made, name) == [told["host_id"]]
    assert let_in in ([], [told["host_id"]])
    assert join(made, other, file, status=2)["code"] == "invitation_used"

"""engine add, list and remove, with a role on the control socket and without."""

import json
import os
import socket
import threading

import pytest

from tests.cli.fake_management import Bench, deployment, operation, snapshot

SERVER = """#!/bin/sh
echo "version: 0.6.0 (build 1, commit abc)" >&2
"""


class FakeRole:
    """Answers on a control socket, one line for one line."""

    def __init__(self, state_root):
        self.received = []
        self.users = []
        self.refuses = None
        self.says = None
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(state_root / "control.sock"))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as channel:
                request = json.loads(channel.readline())
                self.received.append(request)
                channel.write(self._answer(request))

    def _answer(self, request):
        if self.says is not None:
            return self.says
        if self.refuses is not None and request["action"] == "reload":
            return json.dumps({"ok": False, "code": self.refuses, "message": "no"}).encode()
        profile = {
            "profile": "vllm",
            "engine": "vllm",
            "version": "0.32.0",
            "source": "simulated",
            "deep_park": True,
            "deployments": ["poet"],
        }
        found = {"ok": True, "profiles": [profile], "deployments": self.users}
        return json.dumps(found).encode() + b"\n"


@pytest.fixture
def bench(management, tmp_path):
    return Bench(tmp_path / "s", management.address)


@pytest.fixture
def role(bench):
    with FakeRole(bench.state_root) as fake:
        yield fake


@pytest.fixture
def server(tmp_path):
    path = tmp_path / "llama/llama-server"
    path.parent.mkdir()
    path.write_text(SERVER)
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
def test_an_engine_is_registered_without_a_role(bench, server, tmp_path):
    ran = bench.run("engine", "add", server, "--name", "mine", "--arg=--threads", "--arg=4")

    file = tmp_path / ".config/capyctl/engines.yaml"
    assert ran.status == 0
    assert ran.out.startswith("Registered mine (llamacpp 0.6.0)\n")
    assert "Published     when capyctl starts" in ran.out
    assert ran.errors == [
        f"Saved in {file}; capyctl takes it up when it starts",
        f"It does not run now (nothing listens on {bench.state_root / 'control.sock'})",
    ]
    assert "--threads" in file.read_text()


@pytest.mark.slow
def test_a_running_role_publishes_it(bench, role, server):
    ran = bench.run("engine", "add", server, "--json")

    assert role.received == [{"action": "reload"}]
    assert ran.value["published"] == "published"
    assert set(ran.value["fingerprint"]) == {"digest", "version"}
    assert ran.err == ""


@pytest.mark.slow
def test_a_role_that_refuses_is_told(bench, role, server):
    role.refuses = "publish_rejected"

    ran = bench.run("engine", "add", server)

    assert (ran.status, ran.errors) == (21, ["error [publish_rejected]: no"])


@pytest.mark.slow
def test_a_role_that_says_nonsense_is_told(bench, role, server):
    role.says = b"hello\n"

    assert bench.run("engine", "add", server).status == 22


def test_what_is_no_engine_is_refused(bench, tmp_path):
    assert bench.run("engine", "add", str(tmp_path / "none")).status == 16
    assert bench.run("engine", "add", str(tmp_path)).status in (16, 17)


def test_without_a_path_it_needs_a_terminal(bench):
    assert bench.run("engine", "add").status == 23


@pytest.mark.slow
def test_a_name_is_taken_once(bench, server):
    assert bench.run("engine", "add", server).status == 0
    assert bench.run("engine", "add", server).status == 19


@pytest.mark.slow
def test_registered_engines_are_listed(bench, server):
    bench.run("engine", "add", server)

    lines = bench.run("engine", "list").out.splitlines()

    columns = "PROFILE SOURCE ENGINE VERSION CUSTOM DEEP PARK PUBLISHED DEPLOYMENTS"
    assert lines[0].split() == columns.split()
    assert lines[1].split()[:3] == ["llamacpp", "engines.yaml", "llamacpp"]
    assert lines[1].split()[-4:] == ["yes", "no", "unknown", "-"]


@pytest.mark.slow
def test_a_role_says_what_it_publishes(bench, role, server):
    bench.run("engine", "add", server)

    rows = bench.run("engine", "list", "--json").value["engines"]

    assert [(row["profile"], row["source"], row["published"]) for row in rows] == [
        ("llamacpp", "engines.yaml", "not published"),
        ("vllm", "simulated", "published"),
    ]


def test_published_engines_need_a_role(bench):
    ran = bench.run("list", "engines")

    assert ran.status == 13
    assert "control.sock" in ran.errors[0]


def test_published_engines_are_listed_with_their_host(bench, role):
    lines = bench.run("list", "engines").out.splitlines()

    assert lines[1].split() == [
        socket.gethostname(),
        *("vllm", "vllm", "0.32.0", "yes", "yes", "published", "poet"),
    ]


@pytest.mark.slow
def test_removing_without_a_role_edits_the_file(bench, server):
    bench.run("engine", "add", server)

    ran = bench.run("engine", "remove", "llamacpp", "--json")

    assert ran.status == 0
    assert ran.value["published"] == "role_not_running"
    assert bench.run("engine", "list", "--json").value == {"engines": []}


def test_what_was_not_added_cannot_be_removed(bench):
    assert bench.run("engine", "remove", "vllm").status == 2


@pytest.mark.slow
def test_a_profile_in_use_stays(bench, role, server):
    bench.run("engine", "add", server)
    role.users = ["poet"]

    ran = bench.run("engine", "remove", "llamacpp")

    assert ran.status == 20
    assert "is used by poet" in ran.errors[0]
    asked = [request["action"] for request in role.received]
    assert asked[-2:] == ["retire", "keep"]
    assert "llamacpp" in bench.run("engine", "list").out


@pytest.mark.slow
def test_draining_stops_what_uses_it(management, bench, role, server):
    bench.run("engine", "add", server)
    role.users = ["my-model"]
    management.snapshots = [
        snapshot(deployment("ready")),
        snapshot(deployment("stopping"), operations=[operation("running")]),
        snapshot(deployment("stopped")),
    ]

    ran = bench.run("engine", "remove", "llamacpp", "--drain")

    (stop,) = management.changes
    actions = [request["action"] for request in role.received]
    assert ran.status == 0
    assert actions[-2:] == ["retire", "reload"]
    assert stop.fields["action"] == "stop"
    assert role.received[-1] == {"action": "reload"}
    assert "my-model stopping" in ran.waits[0]


@pytest.mark.slow
def test_engines_are_found_by_looking(bench, server, tmp_path):
    folder = os.path.dirname(server)
    bench.environ["PATH"] = "/nonexistent"

    rows = bench.run("engine", "detect", "--path", folder, "--json").value["engines"]

    assert ("llamacpp", server) in [(row["engine"], row["source"]) for row in rows]


def test_a_link_is_not_an_engine_found(bench, server, tmp_path):
    link = tmp_path / "links/llama-server"
    link.parent.mkdir()
    link.symlink_to(server)

    rows = bench.run("engine", "detect", "--path", str(link.parent), "--json").value["engines"]

    assert str(link) not in [row["source"] for row in rows]

"""A role's exit status, and what it says in its state root."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from capyctl.config.problems import ConfigProblem, InvalidDocument, ProblemClass
from capyctl.config.role_document import Given
from capyctl.config.role_settings import RoleSettings
from capyctl.daemon.detecting import MachineUnusable
from capyctl.daemon.root import StateRootBusy
from capyctl.daemon.running import RoleRefused, check_root_is_free, held_role, run_role
from capyctl.daemon.serve_host import run_host, sent_away
from capyctl.daemon.serve_server import run_server
from capyctl.domain.hosts import HostRecord, HostState
from capyctl.domain.ids import HostId
from capyctl.link.peers import record_refusal
from capyctl.store.errors import StoreFromNewerVersion
from capyctl.wire.link import Refused
from tests.e2e.daemon import free_port

NEWER = StoreFromNewerVersion(Path("x"), found_version=9, known_version=1)


def invalid(code="invalid_config"):
    problem = ConfigProblem(kind=ProblemClass.UNSUPPORTED, path="x", detail="no", code=code)
    return InvalidDocument(problem, "host")


@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        (invalid(), 2, "invalid_config"),
        (invalid("unsupported_gpu_topology"), 5, "unsupported_gpu_topology"),
        (RoleRefused("host_revoked", "gone"), 14, "host_revoked"),
        (RoleRefused("not_joined", "join"), 2, "not_joined"),
        (MachineUnusable("topology_unknown", "?"), 11, "topology_unknown"),
        (MachineUnusable("device_policy_mismatch", "!"), 2, "device_policy_mismatch"),
        (NEWER, 5, "store_from_newer_version"),
        (StateRootBusy("busy"), 2, "invalid_config"),
        (ValueError("bad"), 2, "invalid_config"),
        (OSError(24, "too many", "cannot listen"), 13, "internal"),
        (None, 0, None),
    ],
)
def test_the_status_of_a_start_that_is_refused(capsys, problem, status, code):
    def serve(_log):
        if problem is not None:
            raise problem

    assert run_role("host", "json", serve) == status
    lines = capsys.readouterr().err.splitlines()
    if problem is None:
        assert lines == []
    else:
        (line,) = (json.loads(text) for text in lines)
        assert line["event"] == "start_refused"
        assert line["fields"].get("code") == code


def test_a_role_holds_its_root_alone_and_says_which_it_is(tmp_path):
    settings = RoleSettings(
        state_root=tmp_path / "state",
        document_path=tmp_path / "x.yaml",
        shutdown_drain_s=1.0,
        settings=(),
    )
    given = Given(env={}, config_path=tmp_path / "x.yaml")

    with held_role("server", settings, given):
        run = tmp_path / "state/run"
        assert (run / "role").read_text() == "server\n"
        assert (run / "document").read_text() == f"{tmp_path}/x.yaml\n"
        with pytest.raises(StateRootBusy), held_role("host", settings, given):
            pass
        assert (run / "role").read_text() == "server\n"
    with held_role("host", settings, Given(env={})):
        assert not (tmp_path / "state/run/document").exists()


def test_a_host_that_joined_nobody_says_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    document = tmp_path / "host.yaml"
    document.write_text(
        "schema_version: 1\nkind: host\nname: box\ningress: {bind: '127.0.0.1:1'}\n"
    )
    flags = {"--state-dir": str(tmp_path / "state"), "--config": str(document)}

    assert run_host(flags, (), "", "json") == 2
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert line["fields"]["code"] == "not_joined"
    assert "capyctl join host" in line["fields"]["message"]


@pytest.mark.parametrize(
    ("setting", "flag"),
    [
        ("listeners.inference.bind", "--listen"),
        ("listeners.management.bind", "--management-listen"),
        ("listeners.bootstrap.bind", None),
        ("listeners.control.bind", None),
    ],
)
def test_a_server_whose_port_is_taken_names_it(tmp_path, capsys, monkeypatch, setting, flag):
    monkeypatch.setenv("HOME", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        free = {
            "--state-dir": str(tmp_path / "state"),
            "--listen": f"127.0.0.1:{free_port()}",
            "--management-listen": "127.0.0.1:0",
        }
        flags = free if flag is None else {**free, flag: address}
        sets = [f"{setting}={address}"] if flag is None else []
        status = run_server(flags, sets, "json")

    fields = json.loads(capsys.readouterr().err.splitlines()[-1])["fields"]
    named = setting if flag is None else f"{flag}, {setting}"
    assert (status, fields["code"]) == (4, "address_in_use")
    assert f"cannot listen on {address} ({named})" in fields["message"]
    assert f"process {os.getpid()} (" in fields["message"]
    assert (flag or f"--set {setting}=") in fields["message"]


def touched(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")


@pytest.mark.parametrize(
    ("kind", "there", "other"),
    [
        ("server", ["identity/host.json"], "host"),
        ("standalone", ["identity/host.json"], "host"),
        ("host", ["identity/credentials", "srv.sqlite3"], "standalone"),
        ("host", ["identity/server-credentials.json", "srv.sqlite3"], "server"),
    ],
)
def test_a_state_root_is_one_role_s(tmp_path, kind, there, other):
    touched(tmp_path, *there)

    with pytest.raises(RoleRefused, match=f"{tmp_path} is the state directory of a {other} role"):
        check_root_is_free(kind, tmp_path)


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        ("server", ["identity/server-credentials.json", "srv.sqlite3", "config/host.yaml"]),
        ("host", ["identity/host.json", "identity/credentials"]),
    ],
)
def test_a_role_comes_back_to_its_own_root(tmp_path, kind, there):
    touched(tmp_path, *there)

    check_root_is_free(kind, tmp_path)


def test_a_server_leaves_nothing_in_a_host_s_root(tmp_path, capsys):
    touched(tmp_path, "identity/host.json")

    assert run_server({"--state-dir": str(tmp_path)}, (), "json") == 2
    assert sorted(found.name for found in tmp_path.rglob("*")) == ["host.json", "identity"]


def test_a_host_that_was_refused_in_the_handshake_says_how_to_return():
    in_words = record_refusal(HostRecord(id=HostId("A"), name="box", state=HostState.REVOKED), None)
    assert in_words is not None
    for message in ("front:7445: the server has revoked this certificate", in_words.message):
        said = sent_away(Refused(code="host_revoked", message=message), "box")

        assert said.startswith(message)
        assert said.count("capyctl invite host box --recover") == 1
        assert said.endswith("Engines that run here go on")

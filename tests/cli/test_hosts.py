"""Commands about the machines of a server, and what a host machine says to others."""

from __future__ import annotations

import json
import os

import pytest

from capyctl.cli.commands.hosts import _new_owner_file
from tests.cli.fake_management import (
    API_KEY,
    TOKEN,
    Bench,
    FakeManagement,
    Says,
    deployment,
    refusal,
    snapshot,
)

HOST = "01M8N4YAA3381XA5NNFGTSD895"
PREFIX = "/management/v1"
GIB = 1 << 30


def host(**changes):
    return {
        "host_id": HOST,
        "name": "a",
        "state": "online",
        "eligible": True,
        "draining": False,
        "drained": False,
        "compatibility": "supported",
        "binary_version": "0.1.0",
        "profiles": [{"name": "vllm", "family": "vllm", "revision": "1", "version": "0.30.0"}],
        "memory": [
            {
                "domain": "gpu0",
                "total_bytes": str(24 * GIB),
                "managed_limit_bytes": str(22 * GIB),
                "charged_bytes": str(10 * GIB),
                "available_bytes": str(11 * GIB),
            }
        ],
        "instances": [],
        "warnings": [],
        **changes,
    }


def receipt(action):
    return Says(
        202,
        {
            "action": action,
            "api_version": "1",
            "host_id": HOST,
            "host_name": "a",
            "joined": False,
        },
    )


def shows(management, *rows):
    """The same machine, one row after the other; the last for ever."""
    management.reads[f"{PREFIX}/hosts"] = Says(200, {"hosts": [rows[-1]]})
    for word in ("a", HOST):
        management.reads[f"{PREFIX}/hosts/{word}"] = Says(200, rows[-1])


@pytest.fixture
def management():
    with FakeManagement() as fake:
        shows(fake, host())
        yield fake


@pytest.fixture
def bench(management, tmp_path):
    bench = Bench(tmp_path / "state", management.address)
    made_server(bench)
    return bench


def made_server(bench, token=TOKEN):
    identity = bench.state_root / "identity"
    (identity / "credentials").unlink()
    held = {"api_key": API_KEY, "admin_token": token}
    (identity / "server-credentials.json").write_text(json.dumps(held, indent=2))


def test_a_list_of_hosts(management, bench):
    shows(management, host(warnings=["Look at it."]))

    ran = bench.run("list", "hosts")

    assert ran.status == 0
    head, row, warning = ran.out.splitlines()
    assert head.split("  ")[0] == "NAME"
    assert "a     online  yes       0.1.0    supported      gpu0 11.0 / 24.0 GiB" in row
    assert row.endswith("vllm")
    assert warning == "warning: a: Look at it."


def test_a_host_that_takes_nothing_says_why(management, bench):
    shows(management, host(eligible=False, ineligible_reason="draining"))

    assert "no (draining)" in bench.run("list", "hosts").out


def test_an_invitation_is_written_owner_only(management, bench, tmp_path):
    management.answers = [
        Says(202, {"host_name": "a", "expires_at_ms": "1792546900000", "document": "{}\n"})
    ]
    file = tmp_path / "a.join"

    ran = bench.run("invite", "host", "a", "--output", str(file), "--expires", "20m")

    assert ran.status == 0
    assert file.read_text() == "{}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "2026-10-21" in ran.out
    (sent,) = management.changes
    assert sent.path == f"{PREFIX}/invitations"
    assert sent.fields == {"name": "a", "recover": False, "expires_in_ms": 1_200_000}


def test_an_invitation_overwrites_nothing(management, bench, tmp_path):
    file = tmp_path / "a.join"
    file.write_text("mine")

    ran = bench.run("invite", "host", "a", "--output", str(file))

    assert ran.status == 2
    assert management.changes == []
    assert file.read_text() == "mine"


def test_what_an_invitation_that_was_killed_left_is_in_nobodys_way(management, bench, tmp_path):
    file = tmp_path / "a.join"
    file.touch()
    made = {"host_name": "a", "expires_at_ms": "1792546900000", "document": "{}\n"}
    management.answers = [Says(202, made)]

    with _new_owner_file(tmp_path / "b.join"):  # One that runs.
        busy = str(tmp_path / "b.join")
        assert bench.run("invite", "host", "a", "--output", busy).status == 2
    assert management.changes == []
    assert bench.run("invite", "host", "a", "--output", str(file)).status == 0
    assert file.read_text() == "{}\n"
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("b", path)])
def test_an_invitation_takes_the_place_of_nothing_but_a_file(management, bench, tmp_path, make):
    make(tmp_path / "a.join")

    ran = bench.run("invite", "host", "a", "--output", str(tmp_path / "a.join"))

    assert any("is there already" in line for line in ran.errors)
    assert management.changes == []
    assert [entry.name for entry in tmp_path.glob("*.join")] == ["a.join"]


@pytest.mark.parametrize(
    "answer",
    [
        refusal("lifecycle_conflict", 409, message="taken"),
        Says(202, {"host_name": "a", "expires_at_ms": "1"}),
    ],
)
def test_a_refused_invitation_leaves_no_file(management, bench, tmp_path, answer):
    management.answers = [answer]
    file = tmp_path / "a.join"

    assert bench.run("invite", "host", "a", "--output", str(file)).status == 2
    assert not file.exists()


def test_an_invitation_under_a_revoked_name_says_how_the_revoked_one_comes_back(
    management, bench, tmp_path
):
    """It is good for another machine: that the first one is meant is likelier."""
    shows(management, host(state="revoked"))
    made = {"host_name": "a", "expires_at_ms": "1792546900000", "document": "{}\n"}
    management.answers = [Says(202, made), Says(202, made)]

    ran = bench.run("invite", "host", "a", "--output", str(tmp_path / "a.join"))
    back = bench.run("invite", "host", "a", "--recover", "--output", str(tmp_path / "b.join"))

    assert ran.errors == [
        "note: a host a was revoked. This invitation is for another machine of that name; the "
        "revoked one comes back with `capyctl invite host a --recover --output FILE`"
    ]
    assert back.errors == []
    assert (ran.status, back.status) == (0, 0)


def test_a_drain_of_a_host_that_is_away_is_pending(management, bench):
    shows(management, host(state="offline", instances=[held("ready")]))
    management.answers = [receipt("drain")]

    ran = bench.run("drain", "host", "a", "--json")

    assert ran.value["stops"] == "pending"
    assert ran.value["instances"] == 1


def held(state):
    return {"name": "m", "index": 0, "observed_state": state}


def test_a_drain_waits_until_nothing_is_left(management, bench):
    shows(management, host(draining=True, instances=[held("stopping")]))
    management.answers = [receipt("drain")]
    bench.clock.on_sleep = lambda: shows(management, host(draining=True, drained=True))

    ran = bench.run("drain", "host", "a", "--wait")

    assert ran.status == 0
    assert "done: nothing runs there" in ran.out
    assert ran.waits[0].startswith("waiting: a to be empty: m/0 stopping")


def test_a_drain_does_not_wait_for_a_host_that_is_away(management, bench):
    shows(management, host(state="offline", instances=[held("uncertain")]))
    management.answers = [receipt("drain")]

    ran = bench.run("drain", "host", "a", "--wait")

    assert ran.status == 25
    assert "m/0 uncertain" in ran.err


def test_changes_of_a_host_go_by_its_id_and_can_be_repeated(management, bench):
    shows(management, host())
    management.answers = [receipt("undrain"), receipt("undrain")]

    first = bench.run("undrain", "host", "a")
    again = bench.run("undrain", "host", "a", "--request-id", first.request_id)

    assert (first.status, again.status) == (0, 0)
    one, two = management.changes
    assert one == two
    assert one.path == f"{PREFIX}/hosts/{HOST}/actions"
    assert one.fields == {"action": "undrain"}


@pytest.mark.parametrize("words", [("undrain", "host"), ("revoke", "host"), ("inspect", "host")])
def test_a_name_that_no_host_has_is_told_with_those_that_there_are(management, bench, words):
    management.reads[f"{PREFIX}/hosts"] = Says(200, {"hosts": [host(), host(name="b")]})
    management.reads[f"{PREFIX}/hosts/aa"] = refusal("not_found", 404, message="No")

    ran = bench.run(*words, "aa")

    assert ran.status == 2
    assert ran.errors == ["error [not_found]: there is no host aa; hosts: a, b"]


def test_a_revocation_says_how_to_undo_it(management, bench):
    shows(management, host(state="revoked", instances=[held("uncertain")]))
    management.answers = [receipt("revoke")]

    ran = bench.run("revoke", "host", "a")

    assert "capyctl invite host a --recover --output FILE" in ran.out
    assert "m/0 uncertain; its engines run on" in ran.out


def test_people_read_names_of_hosts(management, bench):
    shows(management, host())
    row = deployment("ready")
    row["instances"][0]["host_id"] = HOST
    management.snapshots = [snapshot(row)]

    assert bench.run("list", "deployments").out.splitlines()[1].endswith("  a")
    assert HOST not in bench.run("status", "deployment", "my-model").out
    assert HOST in bench.run("list", "deployments", "--json").out


def test_engines_of_all_hosts(management, bench):
    shows(management, host())

    (row,) = bench.run("list", "engines", "--json").value["engines"]

    assert (row["host"], row["profile"], row["state"]) == ("a", "vllm", "published")


def test_a_delete_does_not_wait_for_a_host_that_is_away(management, bench):
    shows(management, host(state="offline"))
    row = deployment("uncertain")
    row["instances"][0]["host_id"] = HOST
    management.snapshots = [snapshot(row)]

    ran = bench.run("delete", "deployment", "my-model", "--stop", "--json")

    assert ran.status == 0
    assert (ran.value["deleted"], ran.value["cleanup"]) == (False, "pending")
    assert ran.value["host_state"] == "offline"
    assert "host a is offline" in ran.value["message"]


# Which role


def test_the_token_of_a_server(management, bench):
    assert bench.run("list", "hosts").status == 0
    assert management.seen_tokens == {f"Bearer {TOKEN}"}


def test_a_server_s_address_is_in_its_document(management, tmp_path):
    bench = Bench(tmp_path / "state")
    made_server(bench)
    (bench.state_root / "config").mkdir()
    text = f"listeners: {{management: {{bind: '{management.address}'}}}}\n"
    (bench.state_root / "config/server.yaml").write_text(text)

    assert bench.run("list", "hosts").status == 0


def test_of_two_roles_it_is_the_one_that_answers(management, tmp_path):
    bench = Bench(tmp_path / "state", management.address)
    held = {"api_key": API_KEY, "admin_token": "s" * 43}
    (bench.state_root / "identity/server-credentials.json").write_text(json.dumps(held))
    asked = []

    def say(received, before=management._say):
        asked.append(received)
        return refusal("unauthenticated", 401) if len(asked) == 1 else before(received)

    management._say = say

    assert bench.run("list", "deployments").status == 0
    assert management.seen_tokens == {f"Bearer {TOKEN}", f"Bearer {'s' * 43}"}


def test_two_roles_that_do_not_answer_are_named(tmp_path):
    bench = Bench(tmp_path / "state", "127.0.0.1:1")
    held = {"api_key": API_KEY, "admin_token": TOKEN}
    (bench.state_root / "identity/server-credentials.json").write_text(json.dumps(held))

    ran = bench.run("list", "deployments")

    assert ran.status == 2
    assert "role_ambiguous" in ran.err
    assert "a server and a standalone role" in ran.err


@pytest.mark.parametrize("mark", ["config/host.yaml", "identity/host.json", "run/role"])
@pytest.mark.parametrize("words", [("list", "deployments"), ("list", "hosts"), ("status",)])
def test_a_host_has_nothing_to_ask(tmp_path, mark, words):
    bench = Bench(tmp_path / "state")
    (bench.state_root / "identity/credentials").unlink()
    path = bench.state_root / mark
    path.parent.mkdir(exist_ok=True)
    path.write_text("host\n")
    (bench.state_root / "run").mkdir(exist_ok=True)
    (bench.state_root / "run/server-address").write_text("https://front:7445\n")

    ran = bench.run(*words)

    assert ran.status == 2
    assert "error [wrong_machine]" in ran.err
    assert "https://front:7445" in ran.err


def test_a_server_goes_before_a_host_on_the_same_root(management, bench):
    (bench.state_root / "identity/host.json").write_text("{}")

    assert bench.run("list", "hosts").status == 0


def test_a_host_s_document_is_a_host(management, bench, tmp_path):
    path = tmp_path / "host.yaml"
    path.write_text("schema_version: 1\nkind: host\nname: a\n")

    assert bench.run("list", "deployments", "--config", str(path)).status == 2


# Documents


def test_init_writes_a_document_and_says_where(tmp_path):
    bench = Bench(tmp_path / "state")

    ran = bench.run("init", "server", "--set", "listeners.inference.bind=127.0.0.1:1")

    path = bench.state_root / "config/server.yaml"
    assert ran.out.splitlines()[0] == f"Wrote {path}"
    assert "127.0.0.1:1" in path.read_text()
    assert (bench.state_root / "identity/server-credentials.json").exists()
    assert bench.run("validate", "config", "--file", str(path)).status == 0
    assert bench.run("init", "server").status == 2


def test_init_of_a_host_takes_its_limits_from_the_machine(tmp_path):
    bench = Bench(tmp_path / "state")
    path = tmp_path / "box.yaml"

    ran = bench.run(
        *("init", "host", "--name", "box", "--output", str(path)),
        *("--simulate", "gpus=1,memory=24GiB,ram=64GiB"),
    )

    assert ran.status == 0
    assert "Runtime directory" in ran.out
    value = bench.run("validate", "config", "--file", str(path), "--json").value
    assert set(value["document"]["resource_policy"]["domains"]) == {"system", "gpu0"}
    assert value["document"]["name"] == "box"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("init", "server", "--output", "/tmp/x.txt"), "usage"),
        (("init", "server", "--set", "listeners.control.bind=nowhere"), "invalid_config"),
        (("init", "host", "--simulate", "gpus=many"), "invalid_request"),
        (("join", "host", "--join-file", "/nowhere"), "invalid_config"),
    ],
)
def test_what_is_refused_writes_nothing(tmp_path, words, code):
    bench = Bench(tmp_path / "state")

    ran = bench.run(*words)

    assert ran.status == 2
    assert f"error [{code}]" in ran.err
    assert not (bench.state_root / "config").exists()


def test_settings_of_the_role_that_is_there(tmp_path):
    bench = Bench(tmp_path / "state")
    made_server(bench)

    ran = bench.run("config", "show")

    assert ran.out.startswith("role server, document ")
    assert "control.heartbeat_lost_after" in ran.out


def test_settings_of_several_roles_need_a_choice(tmp_path):
    bench = Bench(tmp_path / "state")
    (bench.state_root / "identity/host.json").write_text("{}")

    assert "role_ambiguous" in bench.run("config", "show").err
    assert bench.run("config", "show", "--role", "standalone").status == 0


def test_a_machine_that_never_joined_is_told_what_is_missing(tmp_path):
    bench = Bench(tmp_path / "state")
    assert bench.run("init", "host", "--name", "box", "--simulate").status == 0

    ran = bench.run("doctor", "host")

    assert ran.status == 2
    rows = {line.split()[0]: line.split()[1] for line in ran.out.splitlines()[1:]}
    assert rows["document"] == "ok"
    assert rows["identity"] == "failed"
    assert rows["engines"] == "ok", "a simulated machine has the simulated ones"
    assert rows["role"] == "warning"
    assert "error [unhealthy]" in ran.err


def test_a_server_is_not_drained_as_a_machine_alone(management, bench):
    ran = bench.run("drain", "standalone")

    assert ran.status == 2
    assert "capyctl drain host NAME" in ran.err
    assert management.changes == []


def test_the_machine_of_a_standalone_role_needs_no_name(management, tmp_path):
    alone = Bench(tmp_path / "alone", management.address)
    management.answers = [receipt("drain")]

    ran = alone.run("drain", "standalone")

    assert ran.status == 0
    assert "capyctl undrain standalone" in ran.out
    assert management.changes[0].path == f"{PREFIX}/hosts/{HOST}/actions"


def test_engines_of_hosts_say_whether_they_park_and_who_uses_them(management, bench):
    one = {"family": "vllm", "revision": "1", "version": "0.30.0"}
    older = {**one, "name": "older"}
    used = {**one, "name": "vllm", "deep_park": True, "deployments": ["m"]}
    unused = {**one, "name": "b", "deep_park": False, "deployments": []}
    shows(management, host(profiles=[used, unused, older]))

    rows = bench.run("list", "engines", "--json").value["engines"]

    found = {row["profile"]: (row["deep_park"], row["deployments"]) for row in rows}
    assert found == {"vllm": (True, ["m"]), "b": (False, []), "older": (None, [])}

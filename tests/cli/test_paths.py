"""Paths that cannot be used, in every command that takes one: usage, said with what to do."""

import errno
import json
import os
import resource
import subprocess
import sys

import pytest

from capyctl.cli.commands.hosts import _new_owner_file
from capyctl.cli.failure import CommandFailed
from capyctl.cli.paths import path_refused
from tests.cli.fake_management import API_KEY, TOKEN, Bench

NAME = "x" * 300
BAD = {
    "missing parent": "none/at/all/x.yaml",
    "parent is a file": "file/x.yaml",
    "parent is a loop": "loop/x.yaml",
    "name too long": f"{NAME}.yaml",
    "read-only": "/sys/x.yaml",
}
GOOD_FOR_INIT = "missing parent"


@pytest.fixture(params=BAD.items(), ids=lambda one: one[0])
def bad(request, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    what, path = request.param
    return what, str(tmp_path / path)


@pytest.fixture
def server(bench):
    identity = bench.state_root / "identity"
    (identity / "credentials").unlink()
    held = {"api_key": API_KEY, "admin_token": TOKEN}
    (identity / "server-credentials.json").write_text(json.dumps(held))
    return bench


@pytest.fixture
def alone(tmp_path):
    """A state directory that no role has served."""
    root = tmp_path / "alone"
    root.mkdir(mode=0o700)
    return Bench(root / "state")


def refused(ran, path):
    (error,) = ran.errors
    assert ran.status == 2, error
    assert path.split("x" * 250)[0] in error or path.rpartition("/")[0] in error
    assert ran.out == ""
    return error


def test_an_invitation_goes_into_a_folder_that_is_there(management, server, bad):
    _, path = bad

    error = refused(server.run("invite", "host", "a", "--output", path), path)

    assert error.startswith("error [usage]: --output: ")
    assert "; " in error
    assert management.changes == []


def test_a_document_is_written_where_it_can_be(alone, bad, tmp_path):
    what, path = bad
    fresh = tmp_path / "fresh"

    ran = alone.run("init", "server", "--state-dir", str(fresh), "--output", path)

    if what == GOOD_FOR_INIT:
        assert ran.status == 0
        return
    assert refused(ran, path).startswith("error [usage]: --output: ")
    assert not fresh.exists(), "nothing is half done"


def test_a_simulated_checkpoint_is_written_where_it_can_be(alone, bad):
    what, path = bad

    ran = alone.run("simulate", "checkpoint", path, "--weights", "1MiB")

    if what != GOOD_FOR_INIT:
        assert refused(ran, path).startswith("error [usage]: DIR: ")


def test_a_simulated_checkpoint_does_not_go_into_a_file(alone, tmp_path):
    file = tmp_path / "file"
    file.touch()

    ran = alone.run("simulate", "checkpoint", str(file), "--weights", "1MiB")

    assert ran.status == 2
    assert ran.errors == [
        f"error [usage]: DIR: {file}: File exists; it is no folder: name another path"
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("deploy", "model", "--file"),
        ("validate", "config", "--file"),
        ("engine", "add"),
        ("demo", "--end"),
        ("config", "show", "--config"),
        ("inspect", "config", "--config"),
        ("doctor", "host", "--config"),
        ("init", "host", "--simulate"),
    ],
    ids=" ".join,
)
def test_what_is_read_has_to_be_there(management, bench, bad, words):
    _, path = bad

    ran = bench.run(*words, path)

    assert ran.status in (2, 16), ran.err
    assert os.path.basename(path) in ran.out + ran.err
    assert management.changes == []


def test_a_join_file_has_to_be_there(bench, bad, tmp_path):
    _, path = bad
    document = tmp_path / "host.yaml"
    document.write_text(
        "schema_version: 1\nkind: host\nname: a\ningress: {address: 127.0.0.1:8444}\n"
    )

    ran = bench.run("join", "host", "--config", str(document), "--join-file", path)

    error = refused(ran, path)
    assert error.startswith(("error [usage]: --join-file: ", "error [join_file_unusable]: "))


def test_engines_are_not_found_in_a_folder_that_cannot_be(bench, bad):
    _, path = bad
    bench.environ["PATH"] = ""

    assert bench.run("engine", "detect", "--path", path).status == 0


@pytest.mark.parametrize(
    "words",
    [("status",), ("list", "hosts"), ("engine", "list"), ("prune", "sources"), ("init", "host")],
    ids=" ".join,
)
def test_a_state_directory_that_cannot_be_is_told(bench, bad, words):
    _, path = bad
    bench.environ["PATH"] = ""

    ran = bench.run(*words, "--state-dir", path)

    text = ran.err + ran.out
    assert ran.status in (0, 2, 13, 22), text
    assert "Traceback" not in text


@pytest.mark.parametrize("path", ["/dev/full", "/dev/zero"])
def test_a_simulated_machine_is_not_read_without_an_end(alone, path):
    ran = alone.run("init", "host", "--simulate", path)

    assert ran.status == 2
    assert path in ran.errors[0]


def test_what_is_there_already_is_not_written_over(management, server):
    ran = server.run("invite", "host", "a", "--output", "/dev/full")

    assert ran.status == 2
    assert ran.errors == [
        "error [invalid_request]: /dev/full is there already; name another with --output"
    ]


def test_a_disk_that_fills_up_leaves_no_join_file_and_says_so(tmp_path):
    """The invitation was made by then, and its secret is shown once only."""
    file = tmp_path / "a.join"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write_on_a_full_disk():
        with _new_owner_file(file) as write:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
            try:
                write("{}\n")
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with pytest.raises(CommandFailed) as failed:
        write_on_a_full_disk()

    assert failed.value.exit_status == 13
    assert "free some room" in failed.value.message
    assert "invite the host again" in failed.value.message
    assert not file.exists()


def test_a_result_that_cannot_be_written_is_told():
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "capyctl.cli.main", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert ran.returncode == 13
    assert ran.stderr == (
        "error [internal]: the result cannot be written: No space left on device; what the "
        "command did is done\n"
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fails_is_not_the_callers_fault(number):
    failure = path_refused(OSError(number, os.strerror(number), "/x"), option="--output")

    assert (failure.code, failure.exit_status) == ("internal", 13)
    assert failure.message.startswith(f"--output: /x: {os.strerror(number)}")

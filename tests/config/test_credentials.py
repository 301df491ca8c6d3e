from __future__ import annotations

import io
import re
import subprocess

import pytest

from capyctl.config.credentials import (
    check_state_root,
    credentials_path,
    ensure_credentials,
    read_credentials,
)
from capyctl.config.problems import InvalidDocument
from capyctl.telemetry.log import Log

KEY = "k" * 40
TOKEN = "t" * 40


def written(tmp_path, text, mode=0o600):
    path = credentials_path(tmp_path)
    path.parent.mkdir(mode=0o700)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_they_are_made_once_and_owner_only(tmp_path):
    first = ensure_credentials(tmp_path / "state")

    path = tmp_path / "state" / "identity" / "credentials"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    lines = path.read_text().splitlines()
    assert re.fullmatch(r"api_key: [A-Za-z0-9_-]{43}", lines[0])
    assert re.fullmatch(r"admin_token: [A-Za-z0-9_-]{43}", lines[1])
    assert len(lines) == 2
    assert first.api_key != first.admin_token
    assert ensure_credentials(tmp_path / "state") == first
    assert [entry.name for entry in path.parent.iterdir()] == ["credentials"]


@pytest.mark.parametrize("role", ["standalone", "server"])
def test_two_commands_that_make_them_at_once_go_by_the_same(tmp_path, monkeypatch, role):
    """One that runs by others than the file's would refuse everybody who reads it."""
    others = []

    def both(count):
        if not others:
            others.append(None)
            others[0] = ensure_credentials(tmp_path, role)
        return f"{'x' * count}{next(numbers)}"

    numbers = iter(range(9))
    monkeypatch.setattr("capyctl.config.credentials.secrets.token_urlsafe", both)

    assert ensure_credentials(tmp_path, role) == others[0] == read_credentials(tmp_path, role)


def test_they_are_not_shown(tmp_path):
    found = ensure_credentials(tmp_path)

    assert found.api_key not in repr(found)
    assert found.admin_token not in repr(found)


def test_what_a_shell_reads_is_what_is_read(tmp_path):
    written(tmp_path, f"api_key: {KEY}\nadmin_token: {TOKEN}\n")

    found = read_credentials(tmp_path)

    assert (found.api_key, found.admin_token) == (KEY, TOKEN)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"api_key: {KEY}\nadmin_token: {KEY}\n", "must differ"),
        (f"api_key: {KEY}\n", "two lines"),
        (f"admin_token: {TOKEN}\napi_key: {KEY}\n", "two lines"),
        ("api_key: short\nadmin_token: other\n", "32 to 256"),
        (f"api_key: {KEY} x\nadmin_token: {TOKEN}\n", "32 to 256"),
        (f"api_key: {'k' * 257}\nadmin_token: {TOKEN}\n", "32 to 256"),
        ("", "two lines"),
        ("\xff" * 5000, "over 4096 bytes"),
    ],
)
def test_other_contents_are_refused_without_showing_them(tmp_path, text, words):
    written(tmp_path, text)

    with pytest.raises(InvalidDocument, match=words) as refused:
        read_credentials(tmp_path)

    assert KEY not in str(refused.value)
    logged = io.StringIO()
    Log(logged, role="standalone", clock_wall_ms=lambda: 0).error("start_refused", message=refused)
    assert words in logged.getvalue()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_loose_modes_are_refused(tmp_path, mode):
    written(tmp_path, f"api_key: {KEY}\nadmin_token: {TOKEN}\n", mode)

    with pytest.raises(InvalidDocument, match="0600"):
        read_credentials(tmp_path)


def test_a_link_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(f"api_key: {KEY}\nadmin_token: {TOKEN}\n")
    elsewhere.chmod(0o600)
    (tmp_path / "identity").mkdir()
    credentials_path(tmp_path).symlink_to(elsewhere)

    with pytest.raises(InvalidDocument):
        ensure_credentials(tmp_path)


def test_a_root_that_served_and_lost_them_does_not_start(tmp_path):
    (tmp_path / "srv.sqlite3").touch()

    with pytest.raises(InvalidDocument, match="restore"):
        ensure_credentials(tmp_path)
    assert not credentials_path(tmp_path).exists()


@pytest.mark.parametrize(("mode", "fine"), [(0o755, True), (0o775, False), (0o757, False)])
def test_directories_above_are_not_writable_by_others(tmp_path, mode, fine):
    folder = tmp_path / "above"
    folder.mkdir()
    folder.chmod(mode)

    if fine:
        check_state_root(folder / "state")
    else:
        with pytest.raises(InvalidDocument, match="writable by other users"):
            check_state_root(folder / "state")


def test_a_link_above_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    with pytest.raises(InvalidDocument, match="symbolic link"):
        check_state_root(tmp_path / "link" / "state")


def test_the_path_is_absolute_and_plain(tmp_path):
    for path in (tmp_path.relative_to("/"), tmp_path / ".." / "x"):
        with pytest.raises(InvalidDocument, match="absolute"):
            check_state_root(path)


def test_a_file_is_no_state_root(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(InvalidDocument, match="not a directory"):
        check_state_root(tmp_path / "file")


SED = r's/.*"{name}": *"\([^"]*\)".*/\1/p'


def test_a_server_has_them_as_an_object_that_sed_can_read(tmp_path):
    found = ensure_credentials(tmp_path, "server")

    path = tmp_path / "identity" / "server-credentials.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert ensure_credentials(tmp_path, "server") == found
    for name in ("api_key", "admin_token"):
        command = ["sed", "-n", SED.format(name=name), str(path)]
        read = subprocess.run(command, capture_output=True, text=True, check=True)
        assert read.stdout.strip() == getattr(found, name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'{{"api_key": "{KEY}", "admin_token": "{KEY}"}}', "must differ"),
        (f'{{"api_key": "{KEY}"}}', "api_key and admin_token alone"),
        (f'{{"api_key": "{KEY}", "admin_token": 7}}', "api_key and admin_token alone"),
        (f'{{"api_key": "{KEY}", "admin_token": "{TOKEN}", "x": ""}}', "alone"),
        (f'{{"api_key": "{KEY}", "admin_token": "short"}}', "32 to 256"),
        (f"api_key: {KEY}\nadmin_token: {TOKEN}\n", "JSON object"),
        ("[" * 4000, "JSON object"),
    ],
)
def test_other_objects_are_refused_without_showing_them(tmp_path, text, words):
    path = credentials_path(tmp_path, "server")
    path.parent.mkdir(mode=0o700)
    path.write_text(text)
    path.chmod(0o600)

    with pytest.raises(InvalidDocument, match=words) as refused:
        read_credentials(tmp_path, "server")

    assert KEY not in str(refused.value)
    assert str(refused.value).startswith("Invalid server configuration")

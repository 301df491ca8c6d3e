"""Only their owner can read them, and a crash leaves the old one or the new one."""

from __future__ import annotations

import errno
import fcntl
import os
import threading

import pytest

from capyctl.config.owner_files import (
    OwnerFileUnusable,
    read_owner_file,
    write_new_owner_file,
    write_owner_file,
)


def test_what_is_written_is_read_and_is_the_owners_alone(tmp_path):
    path = tmp_path / "identity" / "secret"
    before = os.umask(0)
    try:
        write_owner_file(path, "first")
        write_owner_file(path, "second")
    finally:
        os.umask(before)

    assert read_owner_file(path, bytes_max=6) == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


def test_what_a_crash_left_half_written_is_in_nobodys_way(tmp_path):
    path = tmp_path / "secret"
    write_owner_file(path, "old")
    (tmp_path / "secret.new").write_text("ha")

    assert read_owner_file(path, bytes_max=9) == b"old"
    write_owner_file(path, "new")

    assert read_owner_file(path, bytes_max=9) == b"new"


def refused(*_, **__):
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("missing", [(), ("flock",), ("link", "flock")])
def test_a_new_one_takes_nothings_place(tmp_path, monkeypatch, missing):
    """Also where a file system has no locks, or no links either."""
    for name in missing:
        monkeypatch.setattr(fcntl if name == "flock" else os, name, refused)
    path = tmp_path / "config" / "server.yaml"

    assert write_new_owner_file(path, "first")
    assert not write_new_owner_file(path, "second")

    assert read_owner_file(path, bytes_max=9) == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["server.yaml"]


def test_of_two_new_ones_at_once_the_first_stays(tmp_path, monkeypatch):
    """Also where no lock holds the other one back."""
    monkeypatch.setattr(fcntl, "flock", refused)
    path = tmp_path / "server.yaml"
    link = os.link

    def overtaken(source, target):
        path.write_text("other")
        link(source, target)

    monkeypatch.setattr(os, "link", overtaken)

    assert not write_new_owner_file(path, "ours")
    assert path.read_text() == "other"
    assert [entry.name for entry in tmp_path.iterdir()] == ["server.yaml"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_new_one_that_a_crash_broke_off_is_not_there(tmp_path, monkeypatch, step):
    """Neither empty nor half: a later start would read it."""

    def die(*_, **__):
        raise KeyboardInterrupt

    path = tmp_path / "server.yaml"
    with monkeypatch.context() as dying:
        dying.setattr(os, step, die)
        with pytest.raises(KeyboardInterrupt):
            write_new_owner_file(path, "whole")
    assert not path.exists()

    assert write_new_owner_file(path, "whole")


def test_a_new_one_has_one_name_at_every_moment(tmp_path, monkeypatch):
    """Killed between two steps, a secret under two names would keep the other one for good."""
    path = tmp_path / "secret"
    fsync = os.fsync

    def looked(descriptor):
        assert len(list(tmp_path.iterdir())) == 1
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", looked)
    monkeypatch.setattr(os, "link", refused)

    assert write_new_owner_file(path, "whole")
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize("write", [write_owner_file, write_new_owner_file])
@pytest.mark.parametrize("step", ["open", "fsync"])
def test_two_who_write_at_once_do_not_take_each_others_file(tmp_path, monkeypatch, write, step):
    """The other one comes while the first has written half, or all but the name."""
    path = tmp_path / "identity" / "secret"
    real, others, failed = getattr(os, step), [], []

    def other():
        try:
            write(path, "other")
        except OSError as problem:
            failed.append(problem)

    def meanwhile(*args, **more):
        found = real(*args, **more)
        if not others and (step == "fsync" or str(args[0]).endswith(".new")):
            others.append(threading.Thread(target=other))
            others[0].start()
            others[0].join(0.2)
        return found

    monkeypatch.setattr(os, step, meanwhile)
    write(path, "ours")
    others[0].join()

    assert not failed
    assert path.read_text() == ("other" if write is write_owner_file else "ours")
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


@pytest.mark.parametrize("write", [write_owner_file, write_new_owner_file])
def test_a_disk_that_fails_is_named_by_the_file_and_nothing_is_left(tmp_path, monkeypatch, write):
    """A write or sync fails without saying where."""

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="No space left") as failed:
        write(tmp_path / "secret", "text")

    assert failed.value.errno == errno.ENOSPC
    assert failed.value.filename == str(tmp_path / "secret")
    assert list(tmp_path.iterdir()) == []


def make_loose(path):
    path.write_text("x")
    path.chmod(0o640)


def make_long(path):
    write_owner_file(path, "x" * 10)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_loose, "0600"),
        (make_long, "over 9 bytes"),
        (lambda path: os.mkfifo(path, 0o600), "not a file"),
        (lambda path: path.mkdir(0o700), "not a file"),
        (lambda path: path.symlink_to("/dev/null"), "symbolic link"),
    ],
)
def test_anything_else_is_refused(tmp_path, make, words):
    make(tmp_path / "secret")

    with pytest.raises(OwnerFileUnusable, match=words):
        read_owner_file(tmp_path / "secret", bytes_max=9)


def test_one_that_is_missing_is_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_owner_file(tmp_path / "secret", bytes_max=9)

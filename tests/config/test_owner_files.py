"""Only their owner can read them, and a crash leaves the old one or the new one."""

from __future__ import annotations

import os

import pytest

from capyctl.config.owner_files import OwnerFileUnusable, read_owner_file, write_owner_file


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

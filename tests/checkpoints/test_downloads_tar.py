"""What comes out of an archive, and what never does."""

from __future__ import annotations

import io
import tarfile

import pytest

from capyctl.checkpoints import downloads_tar
from capyctl.checkpoints.downloads_tar import extract
from capyctl.contracts.checkpoints import Unfetchable
from tests.checkpoints.fake_hub import sha256
from tests.checkpoints.test_digest import file_digest


def packed(path, members, mode="w"):
    """``members``: names and bytes, or `TarInfo` for what is no plain file."""
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            if isinstance(content, bytes):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                content.name = name
                archive.addfile(content)
    return path


def special(kind, target=""):
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


def taken(tmp_path, archive, admit=lambda _: None):
    folder = tmp_path / "model"
    folder.mkdir()
    return extract(archive, folder, admit=admit)


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("top", ["", "./", "model-1/", "./model-1/"])
def test_files_come_out_without_the_one_directory_around_them(tmp_path, mode, top):
    members = [
        (top + "sub", special(tarfile.DIRTYPE)),
        (top + "config.json", b"{}"),
        (top + "sub/w.bin", b"w" * 70_000),
    ]
    admitted = []

    files = taken(tmp_path, packed(tmp_path / "a.tar", members, mode), admitted.append)

    assert contents(tmp_path / "model") == {"config.json": b"{}", "sub/w.bin": b"w" * 70_000}
    assert {file.name: file.sha256 for file in files} == {
        "config.json": sha256(b"{}"),
        "sub/w.bin": sha256(b"w" * 70_000),
    }
    assert {file.digest for file in files} == {file_digest(b"{}"), file_digest(b"w" * 70_000)}
    assert admitted == [70_002]


@pytest.mark.parametrize(
    "members",
    [
        [("../x", b"1")],
        [("/etc/x", b"1")],
        [("a/../../x", b"1")],
        [("a//b", b"1")],
        [("a", b"1"), ("a", b"2")],
        [("a", b"1"), ("a/b", b"2")],
        [("a/b", b"2"), ("a", b"1")],
        [("a", special(tarfile.SYMTYPE, "/etc/passwd"))],
        [("a", special(tarfile.SYMTYPE, "b")), ("b", b"1")],
        [("b", b"1"), ("a", special(tarfile.LNKTYPE, "b"))],
        [("a", special(tarfile.FIFOTYPE))],
        [("a", special(tarfile.CHRTYPE))],
        [("a", special(tarfile.DIRTYPE))],
        [("a\n", b"1")],
    ],
)
def test_anything_but_plain_files_below_is_unsafe(tmp_path, members):
    archive = packed(tmp_path / "a.tar", members)

    with pytest.raises(Unfetchable) as refused:
        taken(tmp_path, archive)

    assert (refused.value.reason, refused.value.again) == ("unsafe_archive", False)
    assert contents(tmp_path / "model") == {}


@pytest.mark.parametrize("data", [b"", b"no archive at all" * 100])
def test_something_else_is_no_archive(tmp_path, data):
    (tmp_path / "a.tar").write_bytes(data)

    with pytest.raises(Unfetchable, match="unsafe_archive"):
        taken(tmp_path, tmp_path / "a.tar")


def test_a_cut_archive_is_no_archive(tmp_path):
    whole = packed(tmp_path / "a.tar", [("a", b"x" * 50_000), ("b", b"y" * 50_000)])
    whole.write_bytes(whole.read_bytes()[:60_000])

    with pytest.raises(Unfetchable, match="unsafe_archive"):
        taken(tmp_path, whole)


def test_members_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads_tar, "MEMBERS_MAX", 3)
    archive = packed(tmp_path / "a.tar", [(f"f{n}", b"1") for n in range(4)])

    with pytest.raises(Unfetchable, match="more than 3 members"):
        taken(tmp_path, archive)


def test_nothing_is_written_without_room(tmp_path):
    def admit(files_bytes):
        raise Unfetchable("too_large", f"{files_bytes}")

    with pytest.raises(Unfetchable, match="too_large: 3"):
        taken(tmp_path, packed(tmp_path / "a.tar", [("a", b"123")]), admit)
    assert contents(tmp_path / "model") == {}

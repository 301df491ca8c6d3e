"""Manifests are trusted only when they are ours, and files only when they are the same ones."""

from __future__ import annotations

import os

import attrs
import pytest

from capyctl.checkpoints.model_files import identity_of
from capyctl.checkpoints.sources_layout import (
    FetchedFile,
    Manifest,
    Place,
    bytes_below,
    check_name,
    read_manifest,
    write_manifest,
)


def kept(folder, name="a/w.bin", content=b"weights"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return FetchedFile(
        name=name,
        size_bytes=len(content),
        sha256="0" * 64,
        digest="1" * 64,
        identity=identity_of(path.lstat()),
    )


def test_a_manifest_comes_back_as_it_was_written(tmp_path):
    files = (kept(tmp_path), FetchedFile(name="b", size_bytes=None, git_sha1="2" * 40))
    made = Manifest(complete=True, files=files)

    write_manifest(tmp_path / "m", made)

    assert read_manifest(tmp_path / "m") == made
    assert (tmp_path / "m").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version":1,"files":[{"name":"../x"}]}', "x"])
def test_a_damaged_manifest_is_none(tmp_path, text):
    path = tmp_path / "m"
    path.touch(0o600)
    path.write_text(text)

    assert read_manifest(path) is None


@pytest.mark.parametrize("how", ["absent", "readable", "link"])
def test_a_manifest_of_others_is_none(tmp_path, how):
    path = tmp_path / "m"
    if how != "absent":
        write_manifest(path, Manifest(complete=True, files=(kept(tmp_path),)))
    if how == "readable":
        path.chmod(0o644)
    if how == "link":
        path.rename(tmp_path / "other")
        path.symlink_to("other")

    assert read_manifest(path) is None


@pytest.mark.parametrize("change", ["gone", "size", "time", "other", "link"])
def test_a_file_that_changed_is_not_the_same(tmp_path, change):
    file = kept(tmp_path)
    path = tmp_path / file.name
    manifest = Manifest(complete=True, files=(file,))
    assert manifest.is_whole(tmp_path)
    assert manifest.known_digests(tmp_path) == [(file.identity, file.digest)]

    if change == "gone":
        path.unlink()
    elif change == "size":
        path.write_bytes(b"more weights")
    elif change == "time":
        os.utime(path, ns=(1, 1))
    elif change == "other":
        path.rename(tmp_path / "moved")
        path.write_bytes(b"weights")
    else:
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")

    assert not manifest.is_whole(tmp_path)


def test_a_new_mode_keeps_the_file_but_not_its_digest(tmp_path):
    file = kept(tmp_path)
    manifest = Manifest(complete=True, files=(file,))
    os.utime(tmp_path / file.name, ns=(5, file.identity[3]))

    assert manifest.is_whole(tmp_path)
    assert manifest.known_digests(tmp_path) == []


def test_what_is_not_complete_or_not_verified_is_not_whole(tmp_path):
    file = kept(tmp_path)

    assert not Manifest(complete=False, files=(file,)).is_whole(tmp_path)
    unverified = attrs.evolve(file, digest=None)
    assert not Manifest(complete=True, files=(unverified,)).is_whole(tmp_path)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", ".", "../a", "a/../b", "a\\b", "a\0"])
def test_names_stay_below_the_directory(name):
    with pytest.raises(ValueError, match="is no name of a file"):
        check_name(name)


def test_sizes_are_summed_over_everything_below(tmp_path):
    kept(tmp_path, "a/b/c", b"123")
    kept(tmp_path, "d", b"4")
    (tmp_path / "link").symlink_to("/etc")

    assert bytes_below(tmp_path / "a") == 3
    assert bytes_below(tmp_path / "d") == 1
    assert bytes_below(tmp_path / "absent") == 0


def test_everything_of_a_source_lies_side_by_side(tmp_path):
    place = Place(tmp_path, "sources/http/ab")

    paths = (place.folder, place.partial, place.archive, place.manifest)
    assert {path.parent for path in paths} == {tmp_path / "sources/http"}
    assert len(set(paths)) == 4

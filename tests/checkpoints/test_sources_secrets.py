"""Secrets come out of owner-only files of one line, and never into a message."""

from __future__ import annotations

import os

import pytest

from capyctl.checkpoints.sources_secrets import read_secret
from capyctl.contracts.checkpoints import Unfetchable

REFERENCE = "secret://token"


def test_the_line_of_an_owner_only_file(tmp_path):
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text("hf_abc\n")

    assert read_secret(tmp_path, REFERENCE) == "hf_abc"


@pytest.mark.parametrize(
    "how", ["absent", "loose", "link", "pipe", "folder", "empty", "lines", "bytes", "long"]
)
def test_anything_else_is_unavailable(tmp_path, how):
    path = tmp_path / "token"
    contents = {
        "empty": b"\n",
        "lines": b"hf_a\nhf_b\n",
        "bytes": b"\xff\xfe",
        "long": b"x" * 70_000,
    }
    if how == "pipe":
        os.mkfifo(path, 0o600)
    elif how == "folder":
        path.mkdir(0o700)
    elif how == "link":
        (tmp_path / "real").touch(0o600)
        (tmp_path / "real").write_text("hf_abc")
        path.symlink_to("real")
    elif how != "absent":
        path.touch(0o600)
        path.write_bytes(contents.get(how, b"hf_abc"))
    if how == "loose":
        path.chmod(0o640)

    with pytest.raises(Unfetchable) as refused:
        read_secret(tmp_path, REFERENCE)

    assert (refused.value.reason, refused.value.terminal) == ("secret_unavailable", True)
    assert REFERENCE in refused.value.detail
    assert "hf_" not in refused.value.detail


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../token"])
def test_a_name_is_one_file_of_the_folder(tmp_path, name):
    with pytest.raises(Unfetchable, match="secret_unavailable"):
        read_secret(tmp_path, f"secret://{name}")

"""Change notes are named `<slug>.<kind>.md` and say something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, project_files, shown

NOTE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\.(?:added|changed|fixed|removed)\.md")
LINES_MAX = 12
NOTES = [path for path in project_files("docs/changes/*") if path.name != "README.md"]


@pytest.mark.parametrize("note", NOTES, ids=shown)
def test_notes_are_short_and_named_by_kind(note):
    text = note.read_text()

    assert NOTE.fullmatch(note.name), "docs/changes/<slug>.<added|changed|fixed|removed>.md"
    assert text.strip()
    assert text.count("\n") <= LINES_MAX
    assert not text.startswith("#"), "a note is sentences, without a heading"


def test_the_notes_folder_explains_itself():
    assert Path(ROOT, "docs/changes/README.md").is_file()

"""The tidy tests look at the same files with and without git."""

from __future__ import annotations

from tests.tidy.tree import ROOT, found, project_files, tracked


def test_python_files_are_found_without_git_too():
    if (ROOT / ".git").exists():
        code = {name for name in tracked() if name.endswith(".py") and (ROOT / name).is_file()}
        assert code <= found()
    assert ROOT / "tests/tidy/tree.py" in project_files("*.py")
    assert project_files(".ci/*") == [ROOT / ".ci/run"]

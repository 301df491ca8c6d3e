"""Every test that the page of known failures names is there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.tidy.tree import ROOT

PAGE = ROOT / "docs" / "design" / "cases.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROWS_MIN = 90


def named() -> list[tuple[str, str]]:
    return sorted(set(NAMED.findall(PAGE.read_text())))


def defined(path: str) -> set[str]:
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("path", sorted({path for path, _ in named()}))
def test_named_tests_are_there(path):
    wanted = {name for where, name in named() if where == path}

    assert wanted - defined(path) == set()


def test_every_failure_has_a_test():
    tables, _, rest = PAGE.read_text().partition("## Where nothing is to be done")
    rows = [line for line in tables.splitlines() if line.startswith("| ")]
    bare = [row for row in rows if "| failure |" not in row and "---" not in row]

    assert len(bare) >= ROWS_MIN
    assert [row for row in bare if not NAMED.search(row)] == []
    assert rest

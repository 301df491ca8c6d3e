"""Files and functions stay short enough to be read in one go."""

from __future__ import annotations

import ast

import pytest

from tests.tidy.tree import production_modules, shown

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70


@pytest.mark.parametrize("path", production_modules(), ids=shown)
def test_nothing_gets_long(path):
    text = path.read_text()

    assert text.count("\n") <= FILE_LINES_MAX
    assert long_functions(text) == []


def long_functions(text: str) -> list[str]:
    return [
        f"{node.name} has {lines} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]


@pytest.mark.parametrize(("lines", "found"), [(70, []), (71, ["f has 71 lines"])])
def test_the_measure_is_exact(lines, found):
    assert long_functions("async def f():\n" + "    pass\n" * (lines - 1)) == found

"""Words that say nothing stay out of names; one machine's paths stay out of every file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.tree import production_modules, project_files, shown

EMPTY_WORDS = {"manager", "helper", "helpers", "util", "utils", "common", "misc"}
"""As docs/words.md: each of them could be the name of anything."""
PRIVATE = {
    "a path of one machine": re.compile(r"(?<![\w.}/-])/(?:work|root)/"),
    "a note to oneself": re.compile(r"\b(?:TO[D]O|FIX[M]E)\b"),
}
TEXT = ("*.py", "*.md", "*.toml", "*.yaml", "*.json", "*.sh", "*.sql", "Makefile", ".ci/*")


def words_of(name: str) -> set[str]:
    """`MemoryManagerV2` and `memory_manager_v2` both hold the word manager."""
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def defined_names(path: Path) -> set[str]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


@pytest.mark.parametrize("path", production_modules(), ids=shown)
def test_names_say_something(path):
    names = defined_names(path) | {path.stem, path.parent.name}

    assert {name for name in names if words_of(name) & EMPTY_WORDS} == set()


@pytest.mark.parametrize("path", project_files(*TEXT), ids=shown)
def test_files_hold_nothing_private(path):
    text = path.read_text()

    found = [
        f"{what}: {hit.group()}" for what, rule in PRIVATE.items() for hit in rule.finditer(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "empty"),
    [("LeaseManager", True), ("my_utils", True), ("manages", False), ("GpuUtil", True)],
)
def test_words_are_taken_apart(name, empty):
    assert bool(words_of(name) & EMPTY_WORDS) is empty

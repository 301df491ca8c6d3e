"""The pages of the machines are what the tables say."""

from __future__ import annotations

import re

from capyctl.machines.diagrams import instance_page, mermaid
from capyctl.machines.instance import InstanceState
from capyctl.machines.instance_table import TABLE
from capyctl.machines.table import Edge
from tests.tidy.tree import ROOT

PAGE = ROOT / "docs/machines/instance.md"


def test_the_page_of_the_instance_is_written_from_its_table():
    assert PAGE.read_text() == instance_page(), (
        "write it anew: python -m capyctl.machines.diagrams > docs/machines/instance.md"
    )


def test_every_state_is_in_the_diagram_and_has_its_part():
    diagram, page = mermaid(TABLE), instance_page()

    for state in InstanceState:
        assert re.search(rf"\b{state.value}\b", diagram)
        assert f"### {state.value}\n" in page


def test_every_edge_says_in_a_sentence_what_it_does():
    edges = [e.run for row in TABLE.values() for e in row.values() if isinstance(e, Edge)]

    assert [run.__name__ for run in edges if not run.__doc__] == []

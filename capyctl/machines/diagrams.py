"""The tables of the machines as diagrams and lists, for `docs/machines/`.

``python -m capyctl.machines.diagrams`` prints the page of the instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from capyctl.machines.instance_table import TABLE
from capyctl.machines.observed import SHOWN
from capyctl.machines.table import Edge, Ignored, Table

TITLE = "The life of an instance"
INTRO = """\
An instance is one copy of a model. Its actor walks this table: a state, a message, an edge. The
page is written from the table (`python -m capyctl.machines.diagrams`), and a test compares them.

A message about an earlier launch, or an answer to an earlier request for memory, is late and
changes nothing, in any state. What is not on the table cannot come, and would be a bug:
`tests/machines/test_instance_table.py` lists each such pair with its reason.
"""


def instance_page() -> str:
    """`docs/machines/instance.md`, whole."""
    parts = [
        f"# {TITLE}\n",
        INTRO,
        "## The way of a model\n",
        "Edges that lead to another state; those that only note something are listed below.\n",
        f"```mermaid\n{mermaid(TABLE)}\n```\n",
        "## State by state\n",
        *(_state(state, row) for state, row in TABLE.items()),
    ]
    return "\n".join(parts)


def mermaid(table: Table[Any]) -> str:
    """The states and the messages that lead from one to another, as a Mermaid diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(table)).value}"]
    for state, row in table.items():
        ways: dict[Any, list[str]] = {}
        for message, edge in row.items():
            if isinstance(edge, Edge):
                for target in _moves(table, state, edge):
                    ways.setdefault(target, []).append(message.__name__)
        lines += [
            f"    {state.value} --> {target.value}: {', '.join(ways[target])}"
            for target in sorted(ways, key=list(table).index)
        ]
    return "\n".join(lines)


def _moves(table: Table[Any], state: Any, edge: Edge[Any]) -> list[Any]:
    """Other states an edge may end in; none for one that is open to all and stays."""
    if len(edge.to) == len(table):
        return []
    return [target for target in edge.to if target is not state]


def _state(state: Any, row: Mapping[type, Edge[Any] | Ignored]) -> str:
    lines = [f"### {state.value}\n", f"Shown as `{SHOWN[state]}`.\n"]
    lines += ["| message | leads to | what is done |", "| --- | --- | --- |"]
    for message, edge in sorted(row.items(), key=lambda item: item[0].__name__):
        name = f"`{message.__name__}`"
        if isinstance(edge, Ignored):
            lines.append(f"| {name} |  | ignored: {edge.why} |")
            continue
        stays = len(edge.to) == len(TABLE) or edge.to == {state}
        targets = "" if stays else ", ".join(sorted(f"`{target.value}`" for target in edge.to))
        lines.append(f"| {name} | {targets} | {_sentence(edge.run)} |")
    return "\n".join(lines) + "\n"


def _sentence(run: Callable[..., Any]) -> str:
    """The first line of an edge's docstring, or its name in words."""
    text = (run.__doc__ or run.__name__.replace("_", " ")).strip().splitlines()[0]
    return text.replace("|", "/")


if __name__ == "__main__":
    print(instance_page(), end="")

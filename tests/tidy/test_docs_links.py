"""Every link between the project's own pages leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, project_files, shown

FENCE = re.compile(r"^( *)(```|~~~).*?^\1?\2", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
ANCHOR = re.compile(r"""<a\s+(?:id|name)=["']([^"']+)""")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def links(text: str) -> list[str]:
    prose = CODE.sub("", FENCE.sub("", text))
    return [target for pair in LINK.findall(prose) for target in pair if target]


def anchors(text: str) -> set[str]:
    """What `page.md#...` may name, as GitHub makes it of the headings."""
    found = set(ANCHOR.findall(text))
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        again = sum(known == slug or known.startswith(f"{slug}-") for known in found)
        found.add(f"{slug}-{again}" if slug in found else slug)
    return found


def broken(page: Path) -> list[str]:
    problems = []
    for link in links(page.read_text()):
        if ELSEWHERE.match(link):
            continue
        name, _, anchor = link.partition("#")
        target = page if not name else (ROOT / name[1:] if name[0] == "/" else page.parent / name)
        if not target.exists():
            problems.append(f"{link}: there is no {name}")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
            problems.append(f"{link}: {target.name} has no such heading")
    return problems


@pytest.mark.parametrize("page", project_files("*.md"), ids=shown)
def test_links_lead_somewhere(page):
    assert broken(page) == []


def targets(page: Path) -> set[Path]:
    """The files that a page leads to, itself left out."""
    names = (link.partition("#")[0] for link in links(page.read_text()) if ":" not in link)
    return {(page.parent / name).resolve() for name in names if name} - {page}


def test_every_page_is_reached_from_the_readme():
    unseen, reached = [ROOT / "README.md"], set[Path]()
    while unseen:
        page = unseen.pop()
        reached.add(page)
        unseen += [found for found in targets(page) - reached if found.suffix == ".md"]

    pages = set((ROOT / "docs").rglob("*.md")) - set((ROOT / "docs" / "changes").glob("*.*.md"))
    assert sorted(map(shown, pages - reached)) == []


def test_a_broken_link_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` c\n[ok](#a-b-c) [ok](page.md) [out](https://example.org/x#y)\n"
        "[gone](other.md) [nowhere](page.md#d)\n`[code](x.md)`\n"
        "```\n[fence](y.md)\n```\n[ref]: z.md\n"
    )

    assert broken(page) == [
        "other.md: there is no other.md",
        "page.md#d: page.md has no such heading",
        "z.md: there is no z.md",
    ]

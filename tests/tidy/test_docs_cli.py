"""The command's reference page says what the grammar says."""

from capyctl.cli.reference import reference
from tests.tidy.tree import ROOT


def test_the_page_is_the_grammars():
    page = (ROOT / "docs/reference/cli.md").read_text()

    assert page == reference(), "python -m capyctl.cli.reference > docs/reference/cli.md"

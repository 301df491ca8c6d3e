"""The guide's program for recomputing a digest finds what we find."""

from __future__ import annotations

import re
from pathlib import Path

from capyctl.checkpoints.digest import LocalCheckpoints
from tests.checkpoints.test_digest import write

GUIDE = Path(__file__).parents[2] / "docs/guide/models.md"


async def test_the_digest_of_the_guide_is_ours(tmp_path):
    files = {"config.json": b"{}", "a/b.bin": b"x" * 1000, "a.bin": b"", "a-b/c": b"1", "ä": b"2"}
    write(tmp_path, files)
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names: dict = {"__name__": "guide"}
    exec(compile(program, str(GUIDE), "exec"), names)

    facts = await LocalCheckpoints().measure(str(tmp_path))

    assert names["digest"](tmp_path) == facts.digest

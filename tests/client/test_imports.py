"""A program that blocks does not pay for Trio; the command uses the client at every start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tidy.tree import ROOT

LOADED = """
import sys
import capyctl.client.sync
print(*sorted(set(sys.argv[1:]) & set(sys.modules)))
"""
HEAVY = ("trio", "h11", "asyncio", "pydantic", "yaml", "quart", "msgspec")


@pytest.mark.slow
def test_the_blocking_client_is_light():
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED, *HEAVY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert loaded.stdout.split() == []

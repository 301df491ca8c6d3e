"""A server and three hosts with addresses and networks of their own, where the system lets us."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tidy.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.faults]

TRY = """
ip link add front type bridge && ip link add out type veth peer name inside && nsenter -t $$ -n true
"""


def test_machines_with_networks_of_their_own():
    try:
        tried = subprocess.run(
            ["unshare", "-rn", "sh", "-c", TRY], capture_output=True, timeout=20, check=False
        )
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if tried.returncode != 0:
        pytest.skip(f"network namespaces are not allowed here: {tried.stderr.decode()}")
    command = ["unshare", "-rn", sys.executable, "-m", "tests.e2e.multi.namespaces"]

    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    assert "all of it came to pass" in done.stderr

"""A state directory may lie deeper than a socket's address is long."""

from __future__ import annotations

import pytest

from capyctl.cli.control_socket import ask_role
from tests.e2e.daemon import running


@pytest.mark.slow
def test_a_deep_state_directory_is_served_and_reached(tmp_path):
    """The kernel takes 107 bytes of address for ``control.sock``."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    with running(deep) as daemon:
        found = ask_role(daemon.state, {"action": "list"})

    assert found is not None
    assert {"vllm", "llamacpp"} <= {row["profile"] for row in found["profiles"]}

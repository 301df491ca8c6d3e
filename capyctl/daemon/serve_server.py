"""The server role: from its settings to its exit status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def run_server(
    flags: Mapping[str, str], sets: Sequence[str] = (), log_format: str | None = None
) -> int:
    raise NotImplementedError

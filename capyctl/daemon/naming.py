"""Gives a listener's failure its address, which the system's message lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from capyctl.config.role_settings import Address


@contextlib.contextmanager
def naming(address: Address, setting: str) -> Iterator[None]:
    """Raises OSError: as in the block, with the address and the setting that says it."""
    try:
        yield
    except OSError as problem:
        where = f"cannot listen on {address} ({setting})"
        raise OSError(problem.errno, problem.strerror or str(problem), where) from problem

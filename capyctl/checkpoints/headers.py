"""What the readers of model headers share: their error, and what counts as believable."""

from __future__ import annotations

LAYERS_MAX = 4_096
COUNT_MAX = 1 << 24
"""Heads, lengths and contexts beyond this are not believed."""


class HeaderError(ValueError):
    """The file is not what its name says, or exceeds a bound. One sentence says which."""

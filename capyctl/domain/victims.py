"""Who is moved out of the way, and how."""

from __future__ import annotations

import attrs

from capyctl.domain.ids import InstanceId


@attrs.frozen(kw_only=True)
class Victim:
    """One instance to be moved out of the way."""

    instance: InstanceId
    stop: bool
    """Stop it: it cannot park, or parked it would still be in the way."""
    windowed: bool
    """It is its deployment's last ready instance: the admission window goes first."""
    why: str | None = None
    """Why it is stopped although its engine parks: ``no room to park`` and alike."""

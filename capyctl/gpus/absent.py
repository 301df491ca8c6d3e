"""A machine without a GPU."""

from __future__ import annotations

import attrs

from capyctl.gpus.nvml import Card


@attrs.frozen(kw_only=True)
class NoCards:
    """Card figures of a machine that has none; its `system` domain is all there is."""

    def read(self) -> tuple[Card, ...]:
        return ()

    async def read_in_thread(self) -> tuple[Card, ...]:
        return ()

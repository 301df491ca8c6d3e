"""What a host's release may be used for beside the server's, and what it is able to do."""

from __future__ import annotations

import enum


class Compatibility(enum.Enum):
    """How a host's release stands to the server's."""

    SUPPORTED = "supported"
    UPGRADE_RECOMMENDED = "upgrade_recommended"
    """One minor release behind: everything works."""
    UPGRADE_REQUIRED = "upgrade_required"
    """Older than that: its models may be ended, nothing is placed, started, woken or parked."""

    @property
    def drains_only(self) -> bool:
        return self is Compatibility.UPGRADE_REQUIRED


CAPABILITIES = frozenset(
    {
        "checkpoint_digest",
        "checkpoint_gguf",
        "device_memory_domains",
        "engine_log_tail",
        "heartbeats",
        "instance_index",
        "live_profile_update",
        "model_sources",
        "startup_bytes",
    }
)
"""What hosts of this release are able to do. A host names its own when it greets the server."""

"""Every bound of the management API in one place, so that tests can make them small."""

from __future__ import annotations

import attrs

MIB = 1024 * 1024


@attrs.frozen(kw_only=True)
class Limits:
    """The defaults are the contract's; only tests set others."""

    reads_max: int = 2
    """Snapshot, effective-config and model-sources together."""
    loads_max: int = 2
    logs_max: int = 2
    changes_max: int = 2
    """Changes in flight, of all routes together."""
    evictions_max: int = 4
    """Starts that evict; they do not count as changes while they run."""
    streams_max: int = 16
    catch_ups_max: int = 4
    """Streams that read the past at one moment; the others wait for their turn."""
    body_bytes_max: int = MIB
    body_s_max: float = 5.0
    """How long a change's body may take to arrive."""
    answer_s_max: float = 15.0
    eviction_answer_s_max: float = 3600.0
    """An evicting start is answered when there is room; at its own deadline at the latest."""
    heartbeat_s: float = 15.0
    stream_s_max: float = 300.0
    send_s_max: float = 5.0
    """How long a client may leave a piece of an answer untaken."""
    drain_s_max: float = 2.0
    """How long the rest of a body is read after its refusal, so that the answer is seen."""
    drain_bytes_max: int = 16 * MIB
    idle_s_max: float = 75.0
    """How long a connection may be silent between requests, and before its first one."""
    graceful_s: float = 1.0
    """How long requests in flight may still take when the daemon stops."""
    connections_max: int = 512

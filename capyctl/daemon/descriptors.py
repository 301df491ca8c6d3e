"""How many descriptors a daemon may have open, and what of them its clients get.

Without any left its engines cannot be watched: no client may bring that about.
"""

from __future__ import annotations

import contextlib
import resource

import attrs

from capyctl.dataplane.listener import REFUSED_MAX
from capyctl.dataplane.plane import Limits

SHARES = 3
"""One for clients, one for the engines that answer them, one for all else."""


def raise_limit() -> None:
    """To what the most clients take, as far as this user may: many systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SHARES * (Limits().connections_max + REFUSED_MAX)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def fitting(limits: Limits) -> Limits:
    """With no more clients of a data plane than this process has descriptors for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits
    count_max = min(limits.connections_max, soft // SHARES - REFUSED_MAX)
    return attrs.evolve(limits, connections_max=max(1, count_max))

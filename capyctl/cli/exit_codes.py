"""The exit status of every error code, as scripts rely on it."""

from __future__ import annotations

from collections.abc import Mapping

OK = 0
REFUSED = 2
FAILED = 13
INTERRUPTED = 130
"""As shells have it for a command that Ctrl-C ended."""

MEANINGS: Mapping[int, str] = {
    0: "done",
    2: "refused: the command, its document or the state it names; and wrong usage",
    3: "the credentials are wrong",
    4: "not enough memory or no room for it; or, of a role that starts, an address it cannot have",
    5: "not supported by this release, engine or machine",
    6: "what runs has to be found out first",
    7: "a device is in conflict",
    8: "a limit of a category is reached",
    10: "not ready within the time",
    11: "the machine's topology is unknown",
    12: "no safe memory estimate",
    13: "failed: capyctl cannot be reached, was too slow, or a waited start gave up",
    14: "this host was revoked",
    15: "no machine can take it now",
    16: "no engine there",
    17: "this engine cannot be used",
    18: "the engine's version check failed",
    19: "the profile's name is taken",
    20: "the profile is in use",
    21: "the running role refused the profile",
    22: "the running role does not answer on its control socket",
    23: "the question needs a terminal",
    24: "no machine publishes the profile",
    25: "an earlier stop is not finished",
    26: "a build tool is missing",
    130: "interrupted",
}

STATUS: Mapping[str, int] = {
    "unauthorized": 3,
    "insufficient_resources": 4,
    "capacity_blocked": 4,
    "insufficient_memory": 4,
    "insufficient_device_memory": 4,
    "device_unobserved": 4,
    "startup_requires_empty_host": 4,
    "address_in_use": 4,
    "address_unavailable": 4,
    "unsupported": 5,
    "unsupported_capability": 5,
    "store_from_newer_version": 5,
    "multi_gpu_unsupported": 5,
    "unsupported_gpu_topology": 5,
    "host_backed_unavailable": 5,
    "capability_missing": 5,
    "group_shape_unsupported": 5,
    "unreconciled": 6,
    "reconciliation_required": 6,
    "device_conflict": 7,
    "category_limit": 8,
    "activation_timeout": 10,
    "topology_unknown": 11,
    "no_safe_estimate": 12,
    "internal": 13,
    "operation_failed": 13,
    "management_unavailable": 13,
    "deadline_exceeded": 13,
    "observation_stale": 13,
    "snapshot_unavailable": 13,
    "demo_failed": 13,
    "host_revoked": 14,
    "host_ineligible": 15,
    "engine_not_found": 16,
    "engine_unsupported": 17,
    "engine_version_failed": 18,
    "profile_exists": 19,
    "profile_in_use": 20,
    "publish_rejected": 21,
    "agent_unreachable": 22,
    "not_interactive": 23,
    "profile_not_published": 24,
    "still_stopping": 25,
    "toolchain_missing": 26,
    "interrupted": 130,
}
"""Codes with a status of their own; what follows a colon in a code does not matter."""


def exit_status(code: str) -> int:
    """The status for an error code; every refusal without one of its own is a 2."""
    return STATUS.get(code.partition(":")[0], REFUSED)

"""Makes some of the generated changes ones that can be accepted, so that links lead somewhere.

Bodies that are not of the right shape are left alone: those are to be refused.
"""

from __future__ import annotations

import json
import time
import zlib

import schemathesis

from tests.fuzz.models import MODELS

LEFT_ALONE = 5
"""One body in so many stays as it was generated."""


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    pick = zlib.crc32(json.dumps(body, sort_keys=True, default=str).encode())
    if pick % LEFT_ALONE == 0:
        return body
    if body.keys() == {"config", "activate"} and isinstance(body["config"], dict):
        return {**body, "config": document(pick), "activate": pick % 7 == 0 and body["activate"]}
    if body.keys() == {"config", "expected_revision"} and isinstance(body["config"], dict):
        return {"config": document(pick), "expected_revision": revision(body, pick)}
    if is_whole(body.get("deadline_ms")) and is_whole(body.get("expected_revision")):
        soon_ms = int(time.time() * 1000) + 60_000
        return {**body, "deadline_ms": soon_ms, "expected_revision": revision(body, pick)}
    return body


def document(pick):
    """One of some documents that can be deployed; few names, so that they meet."""
    found = {"name": f"model-{pick % 6}", "engine": "vllm", "model": MODELS[pick % 2]}
    if pick % 3 == 0:
        found["instances"] = 1 + pick % 2
    if pick % 11 == 0:
        found["residency"] = "restart_only"
    return found


def revision(body, pick):
    return 1 + pick % 2 if is_whole(body["expected_revision"]) else body["expected_revision"]


def is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63

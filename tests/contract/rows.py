"""The routes of the management API, as data for the cases."""

from __future__ import annotations

ULID = "01M5E0MPXN61STKHGZ6BTEFVM3"
"""Of nobody: well formed, and never given out."""
CONFIG = {"name": "nobody", "engine": "vllm", "model": "nobody"}
ACTION = {"action": "stop", "expected_revision": 1, "deadline_ms": 1}
READS = {
    "snapshot": "/snapshot",
    "events": "/events",
    "effective-config": f"/deployments/{ULID}/effective-config",
    "engine-log": f"/deployments/{ULID}/engine-log",
    "load": "/metrics/load",
    "latency": "/metrics/latency",
    "model-sources": "/model-sources",
    "openapi": "/openapi.json",
}
CHANGES = {
    "create": ("POST", "/deployments", {"config": CONFIG, "activate": False}),
    "replace": ("PUT", f"/deployments/{ULID}", {"config": CONFIG, "expected_revision": 1}),
    "action": ("POST", f"/deployments/{ULID}/actions", ACTION),
    "instance-action": ("POST", f"/deployments/{ULID}/instances/0/actions", ACTION),
}
ON_ONE = {name: row for name, row in CHANGES.items() if name != "create"}

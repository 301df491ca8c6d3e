"""Requests and answers of the management API as values; nothing is sent here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from capyctl.client.errors import NotTheApi, RefusedByApi
from capyctl.client.models import Deployment

PREFIX = "/management/v1"
SNAPSHOT = f"{PREFIX}/snapshot"
ANSWER_BYTES_MAX = 256 << 20
_WINDOWS = {"start": "initialize_ms", "preinitialize": "request_deadline_ms"}
_PROXY_STATUSES = (502, 503, 504)


@attrs.frozen(kw_only=True)
class Change:
    """One change with its key. Keep it until it is answered: it is sent again as it is."""

    method: str
    path: str
    key: str
    body: bytes


def create(document: Mapping[str, Any], *, key: str) -> Change:
    """Create a deployment; it does not run before it is started."""
    body = {"config": document, "activate": False}
    return Change(method="POST", path=f"{PREFIX}/deployments", key=key, body=_json(body))


def replace(deployment: Deployment, document: Mapping[str, Any], *, key: str) -> Change:
    """Put a whole new document in the place of the one whose revision was read."""
    body = {"config": document, "expected_revision": deployment.revision}
    path = f"{PREFIX}/deployments/{deployment.id}"
    return Change(method="PUT", path=path, key=key, body=_json(body))


def action(
    deployment: Deployment,
    action: str,
    *,
    key: str,
    now_ms: int,
    instance: int | None = None,
    evict: bool = False,
    within_ms: int | None = None,
) -> Change:
    """``start``, ``stop``, ``park``, ``preinitialize`` or ``delete``, by a deadline that is worked
    out here, once: a request with another deadline would be another change.

    Args:
        now_ms: Unix time, now.
        instance: of one instance, which can only be started and stopped.
        evict: a start may park or stop other models.
        within_ms: instead of the deployment's own window for this action.
    """
    window_ms = deployment.timeouts[_WINDOWS.get(action, "stop_ms")]
    body: dict[str, Any] = {
        "action": action,
        "expected_revision": deployment.revision,
        "deadline_ms": now_ms + (window_ms if within_ms is None else within_ms),
    }
    if evict:
        body["evict"] = True
    one = "" if instance is None else f"/instances/{instance}"
    path = f"{PREFIX}/deployments/{deployment.id}{one}/actions"
    return Change(method="POST", path=path, key=key, body=_json(body))


def headers(
    token: str, *, change: Change | None = None, accept: str = "application/json"
) -> dict[str, str]:
    """Of a read, or of a change."""
    found = {"Accept": accept, "Authorization": f"Bearer {token}"}
    if change is not None:
        found["Content-Type"] = "application/json"
        found["Idempotency-Key"] = change.key
    return found


def read_answer(status: int, data: bytes) -> dict[str, Any]:
    """The body of a success.

    Raises:
        RefusedByApi: it is an error of the API.
        NotTheApi: it is something else.
    """
    if len(data) > ANSWER_BYTES_MAX:
        raise NotTheApi(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    succeeded = 200 <= status < 300
    if succeeded and isinstance(found, dict):
        return found
    if succeeded:
        raise NotTheApi(f"the answer with status {status} is not JSON")
    error = found.get("error") if isinstance(found, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        raise NotTheApi(
            f"status {status} without an error of the management API; does something else "
            "listen there?",
            retryable=status in _PROXY_STATUSES,
        )
    details = error.get("details")
    raise RefusedByApi(
        error["code"],
        str(error.get("message", "")),
        status=status,
        details=details if isinstance(details, dict) else None,
        retryable=error.get("retryable") is True,
    )


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

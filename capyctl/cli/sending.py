"""Sends what the journal recorded, and reads, through the client's retries."""

from __future__ import annotations

from typing import Any

from capyctl.cli.client import ANSWER_S_MAX, Client
from capyctl.cli.journal import Step
from capyctl.client.requests import Change


def read_snapshot(client: Client) -> dict[str, Any]:
    """The whole snapshot. Raises CommandFailed."""
    return client.read("/snapshot")


def send_change(client: Client, step: Step, *, within_s: float = ANSWER_S_MAX) -> dict[str, Any]:
    """Send a recorded change, as `Client.send_change`."""
    change = Change(method=step.method, path=step.path, key=step.key, body=step.body.encode())
    return client.send_change(change, within_s=within_s)

"""Sends what the journal recorded, and reads, through the client's retries."""

from __future__ import annotations

from typing import Any

from capyctl.cli.client import ANSWER_S_MAX, Client
from capyctl.cli.journal import Step
from capyctl.client.requests import Change


def read_snapshot(client: Client) -> dict[str, Any]:
    """The whole snapshot. Raises CommandFailed."""
    return client.read("/snapshot")


def send_host_change(client: Client, step: Step) -> dict[str, Any]:
    """Send a recorded change of hosts, as `Client.send_host_change`."""
    return client.send_host_change(_change(step))


def send_change(client: Client, step: Step, *, within_s: float = ANSWER_S_MAX) -> dict[str, Any]:
    """Send a recorded change, as `Client.send_change`."""
    return client.send_change(_change(step), within_s=within_s)


def _change(step: Step) -> Change:
    return Change(method=step.method, path=step.path, key=step.key, body=step.body.encode())

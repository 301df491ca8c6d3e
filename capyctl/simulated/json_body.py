"""The JSON object that a request carries."""

from __future__ import annotations

from typing import Any

from capyctl.simulated.http_server import Exchange
from capyctl.simulated.openai_request import BadRequest


def payload_of(exchange: Exchange) -> dict[str, Any]:
    """Raises:
    BadRequest: the body is not a JSON object.
    """
    try:
        found = exchange.json() if exchange.body else None
    except (ValueError, UnicodeDecodeError) as error:
        raise BadRequest(f"JSON decode error: {error}") from error
    if not isinstance(found, dict):
        raise BadRequest("the body is not a JSON object")
    return found

"""Asks a model over the inference endpoint, and hands its answer on as it comes."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from capyctl.cli.failure import CommandFailed

ANSWER_S_MAX = 45.0


@attrs.frozen(kw_only=True)
class Answered:
    """How an answer came."""

    first_s: float
    """From the request to the first text, a wake or a start included."""
    total_s: float
    pieces_count: int


def ask_model(
    address: str, key: str, model: str, question: str, piece: Callable[[str], None]
) -> Answered:
    """Stream one chat answer; ``piece`` gets its texts.

    Raises:
        CommandFailed: ``demo_failed``: refused, broken off or too slow.
    """
    body = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": question}],
    }
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_S_MAX)
    began_s = time.monotonic()
    first_s, count = 0.0, 0
    try:
        connection.request(
            "POST",
            "/v1/chat/completions",
            body=json.dumps(body),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        response = connection.getresponse()
        if response.status != 200:
            text = response.read(4096).decode(errors="replace")
            raise CommandFailed("demo_failed", f"{model}: status {response.status}: {text}")
        for text in _texts(response, model):
            if not count:
                first_s = time.monotonic() - began_s
            count += 1
            piece(text)
    except (OSError, http.client.HTTPException) as problem:
        raise CommandFailed("demo_failed", f"{model}: the answer broke off: {problem}") from problem
    finally:
        connection.close()
    if not count:
        raise CommandFailed("demo_failed", f"{model} answered without a text")
    return Answered(first_s=first_s, total_s=time.monotonic() - began_s, pieces_count=count)


def _texts(response: http.client.HTTPResponse, model: str) -> Iterator[str]:
    for raw in iter(response.readline, b""):
        name, _, value = raw.decode(errors="replace").strip().partition(": ")
        if name != "data":
            continue
        if value == "[DONE]":
            return
        chunk: dict[str, Any] = json.loads(value)
        if "error" in chunk:
            raise CommandFailed("demo_failed", f"{model}: {chunk['error'].get('message')}")
        for choice in chunk.get("choices", []):
            text = choice.get("delta", {}).get("content")
            if text:
                yield text
    raise CommandFailed("demo_failed", f"{model}: the answer ended before its end")

"""Proof that an engine answers: health, its model list, a real completion, and the canary.

Every family goes through the same steps; polling has no end of its own, callers cancel it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import trio

from capyctl.contracts.engines import Control, NotReady
from capyctl.engines import http
from capyctl.engines.http import Reply, Unreachable

POLL_MIN_S = 0.1
POLL_MAX_S = 1.0
READ_WITHIN_S = 5.0
EMPTY_ANSWERS_MAX = 3
DETAIL_MAX_CHARS = 300

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
PROBE_TOKENS = 16
CANARY_PROMPT = "Count upwards from one, in words:"
CANARY_TOKENS = 8

BUSY_STATUSES = frozenset({408, 425, 429, 502, 503, 504})
"""Answers of an engine that is still coming up or has its hands full."""


@attrs.frozen(kw_only=True)
class Caller:
    """Calls to one engine, with the right key for each kind of route."""

    control: Control

    async def get(
        self, path: str, *, within_s: float = READ_WITHIN_S, admin: bool = False
    ) -> Reply:
        return await http.request(
            "GET",
            self.control.endpoint.host,
            self.control.endpoint.port,
            path,
            headers=self._headers(admin=admin),
            within_s=within_s,
        )

    async def post(
        self, path: str, value: Any = None, *, within_s: float, admin: bool = False
    ) -> Reply:
        """POST with a JSON body, or without any where ``value`` is None."""
        endpoint = self.control.endpoint
        headers = self._headers(admin=admin)
        if value is None:
            return await http.request(
                "POST", endpoint.host, endpoint.port, path, headers=headers, within_s=within_s
            )
        return await http.request_json(
            "POST", endpoint.host, endpoint.port, path, value, headers=headers, within_s=within_s
        )

    def _headers(self, *, admin: bool) -> dict[str, str]:
        key = self.control.admin_key if admin else self.control.endpoint.key
        return {} if key is None else {"authorization": f"Bearer {key}"}


async def wait_answering(ask: Callable[[], Awaitable[Reply]], what: str) -> Reply:
    """Poll until ``ask`` brings 200. Refused connections, slow ones and 503 are waited out.

    Raises:
        NotReady: another status came, which waiting will not mend.
    """
    reply = await wait_answered(ask)
    if reply.status != 200:
        raise NotReady("launch_failed", f"{what} answered {told(reply)}")
    return reply


async def wait_answered(ask: Callable[[], Awaitable[Reply]]) -> Reply:
    """Poll until ``ask`` brings any answer that is not for want of time."""
    pause_s = POLL_MIN_S
    while True:
        try:
            reply = await ask()
        except Unreachable:
            pass
        else:
            if reply.status not in BUSY_STATUSES:
                return reply
        await trio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, POLL_MAX_S)


async def wait_health(caller: Caller) -> None:
    """Until ``/health`` is 200."""
    await wait_answering(lambda: caller.get("/health", admin=True), "/health")


async def wait_listed(caller: Caller) -> Mapping[str, Any]:
    """Until ``/v1/models`` answers; the entry of the served name.

    Raises:
        NotReady: the name is not listed.
    """
    reply = await wait_answering(lambda: caller.get("/v1/models"), "/v1/models")
    wanted = caller.control.endpoint.served_name
    listed = (reply.json_object() or {}).get("data")
    entries = [entry for entry in listed if isinstance(entry, dict)] if listed else []
    for entry in entries:
        if entry.get("id") == wanted:
            return entry
    names = ", ".join(str(entry.get("id")) for entry in entries)[:DETAIL_MAX_CHARS]
    raise NotReady(
        "effective_args_mismatch", f"/v1/models lists {names or 'nothing'}, not {wanted}"
    )


async def wait_completion(caller: Caller) -> str:
    """Until a completion brings text; the path that did. No read bound of its own.

    A model without a chat template is asked for a plain completion instead.

    Raises:
        NotReady: the engine refuses the request, or answers without text again and again.
    """
    path = CHAT_PATH
    for _ in range(EMPTY_ANSWERS_MAX + 1):
        reply = await _probe(caller, path)
        if path == CHAT_PATH and _lacks_template(reply):
            path = COMPLETIONS_PATH
            continue
        if reply.status != 200:
            raise NotReady("launch_failed", f"the probe of {path} answered {told(reply)}")
        if answer_of(reply).text:
            return path
    raise NotReady("launch_failed", f"{EMPTY_ANSWERS_MAX} probes of {path} brought no text at all")


async def ask_canary(caller: Caller, path: str, *, within_s: float = math.inf) -> str:
    """What the fixed prompt answers, as text to keep and to hand to :func:`same_canary`.

    Raises:
        NotReady: the engine does not answer it.
        Unreachable: no answer came.
    """
    question = _question(caller, path, CANARY_PROMPT, CANARY_TOKENS)
    question["return_token_ids"] = True
    reply = await caller.post(path, question, within_s=within_s)
    if reply.status != 200:
        raise NotReady("launch_failed", f"the canary at {path} answered {told(reply)}")
    answer = answer_of(reply)
    kept = {"ids": answer.ids, "path": path, "text": answer.text}
    return json.dumps(kept, separators=(",", ":"), sort_keys=True)


def canary_path(canary: str | None) -> str:
    """The path that a kept canary was asked at."""
    kept = _read_canary(canary)
    return COMPLETIONS_PATH if kept.get("path") == COMPLETIONS_PATH else CHAT_PATH


def same_canary(before: str, after: str) -> bool:
    """Whether two answers are the same: token ids where both have them, else the text."""
    one, other = _read_canary(before), _read_canary(after)
    if one.get("ids") and other.get("ids"):
        return bool(one["ids"] == other["ids"])
    return bool(one.get("text", before) == other.get("text", after))


@attrs.frozen(kw_only=True)
class Answer:
    text: str
    """Content, or reasoning where there is no content."""
    ids: tuple[int, ...] = ()
    """Generated token ids, where the engine tells them."""


def answer_of(reply: Reply) -> Answer:
    """The first choice of a completion; empty where the body is not one."""
    choices = (reply.json_object() or {}).get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return Answer(text="")
    message = choice.get("message")
    spoken = message if isinstance(message, dict) else {"content": choice.get("text")}
    for field in ("content", "reasoning_content", "reasoning"):
        text = spoken.get(field)
        if isinstance(text, str) and text:
            return Answer(text=text, ids=_ids(choice))
    return Answer(text="", ids=_ids(choice))


def _ids(choice: Mapping[str, Any]) -> tuple[int, ...]:
    """vLLM's `token_ids`, SGLang's `response_token_ids`."""
    found = choice.get("token_ids") or choice.get("response_token_ids")
    if isinstance(found, list) and all(type(one) is int for one in found):
        return tuple(found)
    return ()


def _read_canary(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text) if text is not None else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def _probe(caller: Caller, path: str) -> Reply:
    """One answer of any status that is not for want of time."""
    question = _question(caller, path, "Say hello.", PROBE_TOKENS)
    return await wait_answered(lambda: caller.post(path, question, within_s=math.inf))


def _question(caller: Caller, path: str, prompt: str, tokens: int) -> dict[str, Any]:
    common = {
        "model": caller.control.endpoint.served_name,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": False,
    }
    if path == COMPLETIONS_PATH:
        return {**common, "prompt": prompt}
    return {**common, "messages": [{"role": "user", "content": prompt}]}


def _lacks_template(reply: Reply) -> bool:
    return reply.status == 400 and b"chat template" in reply.body.lower()


def told(reply: Reply) -> str:
    """Status and the beginning of the engine's own words."""
    words = " ".join(reply.body[: 4 * DETAIL_MAX_CHARS].decode(errors="replace").split())
    return f"{reply.status}: {words[:DETAIL_MAX_CHARS]}" if words else str(reply.status)

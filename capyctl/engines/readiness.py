"""Proof that an engine answers: health, its model list, a real answer, and the canary.

Every family goes through the same steps; polling has no end of its own, callers cancel it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import trio

from capyctl.contracts.engines import Control, NotReady
from capyctl.engines import http
from capyctl.engines.http import Reply, Unreachable
from capyctl.engines.questions import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    EMBEDDINGS_PATH,
    PATH_OF_TASK,
    RERANK_PATH,
    TRANSCRIPTIONS_PATH,
    Question,
    answer_of,
    ask,
    write_canary,
)

POLL_MIN_S = 0.1
POLL_MAX_S = 1.0
READ_WITHIN_S = 5.0
EMPTY_ANSWERS_MAX = 3
DETAIL_MAX_CHARS = 300

PROBE_TOKENS = 16
_EMPTY = {
    EMBEDDINGS_PATH: "no embedding of finite numbers other than zero",
    RERANK_PATH: "no scores for the documents",
    TRANSCRIPTIONS_PATH: "no transcription",
}
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

    async def put(self, question: Question, *, within_s: float) -> Reply:
        """POST a question to the model."""
        endpoint = self.control.endpoint
        return await http.request(
            "POST",
            endpoint.host,
            endpoint.port,
            question.path,
            headers={"content-type": question.content_type, **self._headers(admin=False)},
            body=question.body,
            within_s=within_s,
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
    """Until the model answers what it is for; the path that did. No read bound of its own.

    A model without a chat template is asked for a plain completion instead.

    Raises:
        NotReady: the engine refuses the request, or answers with nothing again and again.
    """
    path = PATH_OF_TASK[caller.control.task]
    for _ in range(EMPTY_ANSWERS_MAX + 1):
        question = ask(path, caller.control.endpoint.served_name, "Say hello.", PROBE_TOKENS)
        reply = await wait_answered(functools.partial(caller.put, question, within_s=math.inf))
        if path == CHAT_PATH and _lacks_template(reply):
            path = COMPLETIONS_PATH
            continue
        if reply.status != 200:
            why = f"the probe of {path} answered {told(reply)}"
            raise NotReady("launch_failed", why + _other_task(path, reply))
        if answer_of(path, reply).answers:
            return path
    raise NotReady(
        "launch_failed",
        f"{EMPTY_ANSWERS_MAX} probes of {path} brought {_EMPTY.get(path, 'no text at all')}",
    )


async def ask_canary(caller: Caller, path: str, *, within_s: float = math.inf) -> str:
    """What the fixed prompt answers, as text to keep and to hand to `same_canary`.

    Raises:
        NotReady: the engine does not answer it.
        Unreachable: no answer came.
    """
    question = ask(path, caller.control.endpoint.served_name, CANARY_PROMPT, CANARY_TOKENS)
    if path in (CHAT_PATH, COMPLETIONS_PATH):
        question = attrs.evolve(question, fields={**question.fields, "return_token_ids": True})
    reply = await caller.put(question, within_s=within_s)
    if reply.status != 200:
        raise NotReady("launch_failed", f"the canary at {path} answered {told(reply)}")
    return write_canary(path, answer_of(path, reply))


async def first_canary(caller: Caller) -> str | None:
    """The first proof of an answer, and the canary of an engine that can park.

    Raises:
        NotReady: it does not answer.
    """
    path = await wait_completion(caller)
    if caller.control.level is None:
        return None
    try:
        return await ask_canary(caller, path)
    except Unreachable as problem:
        raise NotReady("launch_failed", f"the canary was not answered: {problem}") from problem


def _lacks_template(reply: Reply) -> bool:
    return reply.status == 400 and b"chat template" in reply.body.lower()


def _other_task(path: str, reply: Reply) -> str:
    """A hint where the engine has no such route, or says what else its model is for."""
    words = reply.body[: 4 * DETAIL_MAX_CHARS].lower()
    named = any(word in words for word in (b"embedding", b"pooling", b"rerank", b"transcri"))
    if path not in (CHAT_PATH, COMPLETIONS_PATH) or not (named or reply.status in (404, 405, 501)):
        return ""
    return (
        "; engine_config.task says what else than text a model is for (embed, rerank, transcribe)"
    )


def told(reply: Reply) -> str:
    """Status and the beginning of the engine's own words."""
    words = " ".join(reply.body[: 4 * DETAIL_MAX_CHARS].decode(errors="replace").split())
    return f"{reply.status}: {words[:DETAIL_MAX_CHARS]}" if words else str(reply.status)

"""What a model is asked to prove that it answers, and how the answers of engines are read.

Each kind of question has its path: a chat or a completion brings text, an embedding or a
reranking numbers, a transcription what was heard.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from capyctl.domain.specs import ModelTask
from capyctl.engines.http import Reply

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
EMBEDDINGS_PATH = "/v1/embeddings"
RERANK_PATH = "/v1/rerank"
TRANSCRIPTIONS_PATH = "/v1/audio/transcriptions"
PATH_OF_TASK: Mapping[ModelTask, str] = {
    ModelTask.GENERATE: CHAT_PATH,
    ModelTask.EMBED: EMBEDDINGS_PATH,
    ModelTask.RERANK: RERANK_PATH,
    ModelTask.TRANSCRIBE: TRANSCRIPTIONS_PATH,
}

KEPT_NUMBERS_MAX = 64
COSINE_MIN = 0.99
SCORE_DIFFERENCE_MAX = 0.02
SOUND_RATE = 16_000
SOUND_S = 1.0
SOUND_HZ = (220.0, 330.0)
BOUNDARY = "capyctl-probe"


@attrs.frozen(kw_only=True)
class Question:
    """One POST: a JSON value, or a form with a recording."""

    path: str
    fields: Mapping[str, Any]
    sound: bytes | None = None

    @property
    def content_type(self) -> str:
        if self.sound is None:
            return "application/json"
        return f"multipart/form-data; boundary={BOUNDARY}"

    @property
    def body(self) -> bytes:
        if self.sound is None:
            return json.dumps(self.fields, separators=(",", ":")).encode()
        parts = [
            _part(f'name="{name}"', str(value).encode()) for name, value in self.fields.items()
        ]
        named = 'name="file"; filename="probe.wav"\r\nContent-Type: audio/wav'
        return b"".join([*parts, _part(named, self.sound), f"--{BOUNDARY}--\r\n".encode()])


@attrs.frozen(kw_only=True)
class Answer:
    """What came of a question, of either kind. Empty where the body is no such answer."""

    text: str = ""
    """Content, or reasoning where there is no content."""
    ids: tuple[int, ...] = ()
    """Generated token ids, where the engine tells them."""
    numbers: tuple[float, ...] = ()
    """The beginning of an embedding, or the scores of documents in their order."""
    heard: bool = False
    """A transcription came, if only of nothing."""

    @property
    def answers(self) -> bool:
        return bool(self.text or self.numbers or self.heard)


def ask(path: str, model: str, prompt: str, tokens: int) -> Question:
    """The question of one kind about ``prompt``, for at most ``tokens`` where text is made."""
    if path == EMBEDDINGS_PATH:
        return Question(path=path, fields={"model": model, "input": prompt})
    if path == RERANK_PATH:
        documents = ["one two three four", "a river in spring"]
        return Question(path=path, fields={"model": model, "query": prompt, "documents": documents})
    if path == TRANSCRIPTIONS_PATH:
        fields = {"model": model, "response_format": "json", "temperature": "0"}
        return Question(path=path, fields=fields, sound=sound())
    common = {"model": model, "max_tokens": tokens, "temperature": 0, "stream": False}
    if path == COMPLETIONS_PATH:
        return Question(path=path, fields={**common, "prompt": prompt})
    messages = [{"role": "user", "content": prompt}]
    return Question(path=path, fields={**common, "messages": messages})


def answer_of(path: str, reply: Reply) -> Answer:
    """What the body of a 200 says."""
    try:
        body = reply.json()
    except ValueError:
        return Answer()
    if path == EMBEDDINGS_PATH:
        return Answer(numbers=_embedding(body))
    if path == RERANK_PATH:
        return Answer(numbers=_scores(body))
    words = body if isinstance(body, dict) else {}
    if path == TRANSCRIPTIONS_PATH:
        text = words.get("text")
        return Answer(text=text, heard=True) if isinstance(text, str) else Answer()
    return _written(words)


def sound() -> bytes:
    """One second of two quiet tones as a WAV file: 16 kHz, 16 bits, one channel."""
    count = int(SOUND_RATE * SOUND_S)
    samples = [
        int(sum(4000 * math.sin(2 * math.pi * hz * at / SOUND_RATE) for hz in SOUND_HZ))
        for at in range(count)
    ]
    data = struct.pack(f"<{count}h", *samples)
    form = struct.pack("<IHHIIHH", 16, 1, 1, SOUND_RATE, 2 * SOUND_RATE, 2, 16)
    riff = struct.pack("<4sI4s", b"RIFF", 36 + len(data), b"WAVE")
    return b"".join([riff, b"fmt ", form, b"data", struct.pack("<I", len(data)), data])


def write_canary(path: str, answer: Answer) -> str:
    """An answer as text to keep and to hand to :func:`same_canary`."""
    kept: dict[str, Any] = {"ids": answer.ids, "path": path, "text": answer.text}
    if answer.numbers:
        kept["numbers"] = answer.numbers
    return json.dumps(kept, separators=(",", ":"), sort_keys=True)


def canary_path(canary: str | None) -> str:
    """The path that a kept canary was asked at."""
    path = _read_canary(canary).get("path")
    known = (*PATH_OF_TASK.values(), COMPLETIONS_PATH)
    return str(path) if path in known else CHAT_PATH


def same_canary(before: str, after: str) -> bool:
    """Whether two answers are the same: numbers nearly, token ids where both have them, else
    the text."""
    one, other = _read_canary(before), _read_canary(after)
    if one.get("numbers") or other.get("numbers"):
        alike = _alike if canary_path(before) == EMBEDDINGS_PATH else _near
        return alike(one.get("numbers") or (), other.get("numbers") or ())
    if one.get("ids") and other.get("ids"):
        return bool(one["ids"] == other["ids"])
    return bool(one.get("text", before) == other.get("text", after))


def _part(named: str, content: bytes) -> bytes:
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {named}\r\n\r\n".encode()
    return b"".join([head, content, b"\r\n"])


def _written(words: Mapping[str, Any]) -> Answer:
    """The first choice of a completion."""
    choices = words.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return Answer()
    message = choice.get("message")
    spoken = message if isinstance(message, dict) else {"content": choice.get("text")}
    for field in ("content", "reasoning_content", "reasoning"):
        text = spoken.get(field)
        if isinstance(text, str) and text:
            return Answer(text=text, ids=_ids(choice))
    return Answer(ids=_ids(choice))


def _ids(choice: Mapping[str, Any]) -> tuple[int, ...]:
    """vLLM's `token_ids`, SGLang's `response_token_ids`."""
    found = choice.get("token_ids") or choice.get("response_token_ids")
    if isinstance(found, list) and all(type(one) is int for one in found):
        return tuple(found)
    return ()


def _embedding(body: Any) -> tuple[float, ...]:
    rows = body.get("data") if isinstance(body, dict) else None
    row = rows[0] if isinstance(rows, list) and rows else None
    values = row.get("embedding") if isinstance(row, dict) else None
    found = _finite(values) if isinstance(values, list) else ()
    # A model whose weights are gone answers with zeros, or with no numbers at all.
    return found[:KEPT_NUMBERS_MAX] if any(found) else ()


def _scores(body: Any) -> tuple[float, ...]:
    """``results`` of vLLM and llama.cpp; SGLang answers with the bare list."""
    rows = body.get("results") if isinstance(body, dict) else body
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return ()
    if not all(type(row.get("index")) is int for row in rows):
        return ()
    ordered = sorted(rows, key=lambda row: row["index"])
    return _finite([row.get("relevance_score", row.get("score")) for row in ordered])


def _finite(values: Sequence[Any]) -> tuple[float, ...]:
    """All of them as numbers; nothing where one is none."""
    if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
        return ()
    return tuple(float(value) for value in values)


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two vectors point the same way."""
    if len(one) != len(other):
        return False
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product >= COSINE_MIN * math.hypot(*one) * math.hypot(*other) > 0


def _near(one: Sequence[float], other: Sequence[float]) -> bool:
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(abs(a - b) <= SCORE_DIFFERENCE_MAX * max(1.0, abs(a)) for a, b in pairs)


def _read_canary(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text) if text is not None else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

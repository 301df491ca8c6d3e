"""What an OpenAI-style request asks for, as far as a simulated engine cares."""

from __future__ import annotations

from typing import Any

import attrs

CHOICES_MAX = 128
TOKENS_MAX = 10_000_000


class BadRequest(Exception):
    """The request is refused with 400."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@attrs.frozen(kw_only=True)
class TextRequest:
    """A request for text. ``is_chat`` tells which of the two shapes the answer has."""

    is_chat: bool
    model: str | None
    prompt: str
    token_count_max: int | None
    stream: bool
    include_usage: bool
    usage_on_every_chunk: bool
    seed: int
    choices: int
    ignore_end: bool


def read_text_request(payload: object, *, is_chat: bool) -> TextRequest:
    """Raises:
    BadRequest: a field that matters is missing or of the wrong type.
    """
    if not isinstance(payload, dict):
        raise BadRequest("the body is not a JSON object")
    names = ("max_completion_tokens", "max_tokens", "n_predict") if is_chat else ("max_tokens",)
    wanted = next((payload[name] for name in names if payload.get(name) is not None), None)
    options = payload.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("stream_options is not an object", "stream_options")
    model = payload.get("model")
    return TextRequest(
        is_chat=is_chat,
        model=model if isinstance(model, str) else None,
        prompt=_chat_prompt(payload) if is_chat else _plain_prompt(payload),
        token_count_max=_token_count(wanted),
        stream=payload.get("stream") is True,
        include_usage=options.get("include_usage") is True,
        usage_on_every_chunk=options.get("continuous_usage_stats") is True,
        seed=_whole(payload, "seed", 0, -(1 << 63), 1 << 64),
        choices=_whole(payload, "n", 1, 1, CHOICES_MAX),
        ignore_end=payload.get("ignore_eos") is True,
    )


def _token_count(wanted: object) -> int | None:
    if wanted is None or wanted == -1:
        return None
    return _whole({"max_tokens": wanted}, "max_tokens", 1, 1, TOKENS_MAX)


def _whole(payload: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    found = payload.get(name)
    found = default if found is None else found
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise BadRequest(f"{name} must be a whole number from {least} to {most}", name)
    return found


def _chat_prompt(payload: dict[str, Any]) -> str:
    messages = payload.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list with at least one message", "messages")
    lines = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest("each of messages must have a role", "messages")
        lines.append(f"{message['role']}: {_content(message.get('content'))}")
    return "\n".join(lines)


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(
            part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type')}]"
            for part in content
            if isinstance(part, dict)
        )
    if content is None or isinstance(content, str):
        return content or ""
    raise BadRequest("content must be a text or a list of parts", "messages")


def _plain_prompt(payload: dict[str, Any]) -> str:
    prompt = payload.get("prompt")
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt:
        return " ".join(str(part) for part in prompt)
    raise BadRequest("prompt must be a text or a list", "prompt")


def read_inputs(payload: object) -> tuple[str | None, list[str]]:
    """Model and texts of a request for embeddings.

    Raises:
        BadRequest: there is no ``input``.
    """
    if not isinstance(payload, dict):
        raise BadRequest("the body is not a JSON object")
    model, given = payload.get("model"), payload.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        raise BadRequest("input must be a text or a list", "input")
    if all(isinstance(part, int) for part in texts):
        texts = [" ".join(str(part) for part in texts)]
    return (model if isinstance(model, str) else None), [str(text) for text in texts]

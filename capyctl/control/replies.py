"""Answers to asks, where there is still somebody who asked."""

from __future__ import annotations

from actors import ReplyTo
from capyctl.domain.errors import Refused


def answer(reply: ReplyTo | None, response: str) -> None:
    if reply is not None:
        reply.answer(response)


def fail(reply: ReplyTo | None, refused: Refused) -> None:
    if reply is not None:
        reply.fail(refused)

"""Answers to asks, where there is still somebody who asked."""

from __future__ import annotations

from actors import ReplyTo
from capyctl.contracts.store import Store
from capyctl.domain.errors import Refused
from capyctl.messages.deployment import ReceiptKey


def answer(reply: ReplyTo | None, response: str) -> None:
    if reply is not None:
        reply.answer(response)


def fail(reply: ReplyTo | None, refused: Refused) -> None:
    if reply is not None:
        reply.fail(refused)


async def refuse(store: Store, reply: ReplyTo | None, refused: Refused, key: ReceiptKey) -> None:
    """Refuse a change, unless an equal one was accepted a moment before: that answers for both."""
    taken = await store.find_receipt(key.scope, key.key)
    if taken is not None and taken.fingerprint == key.fingerprint:
        answer(reply, taken.response)
    else:
        fail(reply, refused)

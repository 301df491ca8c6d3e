"""What simulated engines say: always the same for the same weights, prompt and seed."""

from __future__ import annotations

import hashlib
import struct

WORDS = (
    "a", "about", "again", "all", "and", "answer", "as", "at", "bank", "be", "before", "bright",
    "by", "calm", "capybara", "clear", "cold", "day", "deep", "every", "far", "few", "field",
    "follows", "for", "from", "grass", "green", "has", "here", "high", "in", "is", "it", "its",
    "keeps", "lake", "late", "leaf", "light", "like", "long", "many", "moon", "more", "near",
    "night", "of", "old", "on", "one", "open", "or", "over", "quiet", "rain", "rests", "river",
    "same", "shore", "slow", "small", "so", "soft", "some", "still", "stone", "sun", "swims",
    "that", "the", "then", "there", "thing", "this", "time", "to", "tree", "under", "very",
    "walks", "warm", "water", "way", "well", "where", "wide", "wind", "with", "word",
)  # fmt: skip
EMBEDDING_LENGTH = 64


def prompt_tokens(text: str) -> int:
    """A count that grows with the text, about a token for four bytes."""
    return max(1, -(-len(text.encode()) // 4))


def reply_words(weights_id: bytes, prompt: str, seed: int, count: int, index: int = 0) -> list[str]:
    """``count`` pieces of text; joined they read as words."""
    source = hashlib.sha256(weights_id + f"\0{seed}\0{index}\0{prompt}".encode()).digest()
    words: list[str] = []
    block = b""
    for at in range(count):
        if at % 16 == 0:
            block = hashlib.sha256(source + at.to_bytes(8, "big")).digest()
        (number,) = struct.unpack_from(">H", block, at % 16 * 2)
        word = WORDS[number % len(WORDS)]
        words.append(word.capitalize() if at == 0 else f" {word}")
    return words


def gibberish(count: int) -> list[str]:
    """What an engine says whose weights were not loaded again."""
    return ["!"] * count


def natural_length(weights_id: bytes, prompt: str, reply_tokens: int) -> int:
    """Tokens of an answer that nothing cuts short."""
    source = hashlib.sha256(weights_id + prompt.encode()).digest()
    return reply_tokens + source[0] % (reply_tokens // 4 + 1)


def embedding(weights_id: bytes, text: str) -> list[float]:
    """A vector of length 1."""
    numbers: list[int] = []
    for at in range(EMBEDDING_LENGTH // 32):
        numbers += hashlib.sha256(weights_id + bytes([at]) + text.encode()).digest()
    centred = [number - 127.5 for number in numbers]
    norm = sum(number * number for number in centred) ** 0.5
    return [round(number / norm, 8) for number in centred]

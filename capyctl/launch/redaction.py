"""Takes secrets out of engine output: pure, standard library only, the same when written and read.

A line is the unit: nothing is handed on before its line is complete, so a secret that
arrives in two pieces is still seen whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REDACTED = "<redacted>"
LINE_BYTES_MAX = 64 * 1024
"""A longer line is cut here, and the cut is noted in it."""
HOLD_BYTES_MIN = 4096
WHOLE_WORD_CHARS_MAX = 3
"""A secret this short is taken out as a whole word only: it would be in every other word."""
LINE_OF_SECRET_CHARS_MIN = 8
RUN_CHARS_MIN = 48

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")

_TELLING = re.compile(r"credential|secret|passw|passphrase|authorization|key|token", re.IGNORECASE)
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,256}")
_IDENTIFIER_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_LEFT_CHARS_MAX = 128
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS = frozenset(
    (
        *("credential", "credentials", "secret", "secrets", "password", "passwd"),
        *("passphrase", "apikey", "authorization"),
    )
)
_KEY_KINDS = frozenset(("api", "private", "admin", "access"))
_COUNT = re.compile(r"[0-9]{1,7}(?:\.[0-9]+)?")
_GAP = re.compile(r"""\\?["']?\s{0,8}(?:[:=]|,(?=\s{0,8}\\?["']))\s{0,8}|\\?["']?\s{1,8}(?=\S)""")
_HEADER_VALUE = re.compile(r"""[^"'\n,;)\]}]+""")
_QUOTED = re.compile(r"""(\\?["'])((?:(?!\1)(?:\\.|[^\\\n]))*)""")
_BARE = re.compile(r"""[^\s"',;&)\]}]+""")
_PLAIN_VALUES = frozenset({"none", "null", "true", "false", "", "***", "[redacted]", REDACTED})

_URL = re.compile(r"\b([a-z][a-z0-9+.-]{1,15}://)([^\s\"'<>`]*(?:<redacted>[^\s\"'<>`]*)*)", re.I)
_BEARER = re.compile(r"\b(bearer\s+)(?!<redacted>)[^\s\"',;)\]}]+", re.IGNORECASE)
_HUB_TOKEN = re.compile(r"\bhf_(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{6,}|[A-Za-z0-9]{20,})")
_JWT = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")
_RUN = re.compile(rf"[A-Za-z0-9_+=-]{{{RUN_CHARS_MIN},}}|[A-Za-z0-9+/]{{40,}}={{1,2}}")


class Redactor:
    """Rewrites credentials in text; with the given secrets and by their usual shapes."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        long = sorted((f for f in forms if len(f) > WHOLE_WORD_CHARS_MAX), key=len, reverse=True)
        short = sorted((f for f in forms if len(f) <= WHOLE_WORD_CHARS_MAX), key=len, reverse=True)
        patterns = [re.escape(form) for form in long]
        patterns += [rf"(?<!\w){re.escape(form)}(?!\w)" for form in short]
        self._known = re.compile("|".join(patterns)) if patterns else None
        self.hold_bytes = max([HOLD_BYTES_MIN, *(len(f.encode(errors="replace")) for f in forms)])
        """No known secret is longer in the text than this."""

    def redact(self, text: str) -> str:
        """The text without escape sequences, control characters and credentials.

        Takes whole lines. Twice is the same as once.
        """
        text = clean(text)
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        if "://" in text:
            text = _URL.sub(_without_url_secrets, text)
        text = _without_assigned(text)
        text = _BEARER.sub(rf"\1{REDACTED}", text)
        text = _HUB_TOKEN.sub(REDACTED, text)
        text = _JWT.sub(REDACTED, text)
        return _RUN.sub(_without_run, text)


def clean(text: str) -> str:
    """Without terminal escapes, and without control characters except tab and newline."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def _forms(secret: str) -> set[str]:
    """The ways in which one secret may stand in a line: bare, escaped, percent-encoded."""
    forms = set()
    lines = [line for line in secret.splitlines() if len(line) >= LINE_OF_SECRET_CHARS_MIN]
    for line in [secret, *lines]:
        bare = clean(line).replace("\n", "")
        forms |= {
            bare,
            bare.strip(),
            repr(line)[1:-1],
            line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"),
            _percent_encoded(line),
        }
    forms = {clean(form) for form in forms}
    # Bytes that are no text arrive in a log as the replacement character.
    forms |= {form.encode(errors="surrogateescape").decode(errors="replace") for form in forms}
    return {form for form in forms if form.strip()}


def _percent_encoded(text: str) -> str:
    kept = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
    data = text.encode(errors="surrogateescape")
    return "".join(chr(byte) if byte in kept else f"%{byte:02X}" for byte in data)


def _without_url_secrets(found: re.Match[str]) -> str:
    scheme, rest = found[1], found[2]
    rest, hash_mark, fragment = rest.partition("#")
    rest, question_mark, query = rest.partition("?")
    place, slash, path = rest.partition("/")
    _, at_sign, host = place.rpartition("@")
    if at_sign:
        place = f"{REDACTED}@{host}"
    if query:
        query = REDACTED
    if fragment:
        fragment = REDACTED
    return scheme + place + slash + path + question_mark + query + hash_mark + fragment


def is_secret_name(name: str) -> bool:
    """Whether a field, variable or option of this name holds a credential.

    ``api_key``, ``HF_TOKEN`` and ``dbPassword`` do; ``max_total_tokens``, ``tokenizer`` and
    ``eos_token_id`` do not.
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    around = zip(["", *words], words, [*words[1:], ""], strict=False)
    return any(
        word in _SECRET_WORDS
        or (word == "token" and after not in ("id", "ids"))
        or (word in ("key", "keys") and (before in _KEY_KINDS or after in _KEY_KINDS))
        for before, word, after in around
    )


def _without_assigned(text: str) -> str:
    """``api_key=…``, ``"token": "…"``, ``--api-key …``, ``Authorization: Bearer …``."""
    parts: list[str] = []
    done = judged = 0
    for telling in _TELLING.finditer(text):
        if telling.start() < judged:
            continue
        start = _identifier_start(text, telling.start(), judged)
        name = _IDENTIFIER.match(text, start)
        if name is None:
            continue
        judged = name.end()
        value = _value_after(text, name) if is_secret_name(name[0]) else None
        if value is not None:
            parts += [text[done : value[0]], REDACTED]
            done = judged = value[1]
    return "".join([*parts, text[done:]])


def _identifier_start(text: str, at: int, at_least: int) -> int:
    start = at
    while start > max(at_least, at - _LEFT_CHARS_MAX) and text[start - 1] in _IDENTIFIER_CHARS:
        start -= 1
    return start


def _value_after(text: str, name: re.Match[str]) -> tuple[int, int] | None:
    """Where the value assigned to a secret name stands; None when there is none to hide."""
    gap = _GAP.match(text, name.end())
    if gap is None or "\n" in gap[0]:
        return None
    if not name[0].startswith("--") and not any(mark in gap[0] for mark in ":=,"):
        return None  # prose, such as "token usage"
    quoted = _QUOTED.match(text, gap.end())
    if quoted is not None:
        start, end = quoted.span(2)
    else:
        is_header = "authorization" in name[0].lower()
        bare = (_HEADER_VALUE if is_header else _BARE).match(text, gap.end())
        if bare is None:
            return None
        start, end = bare.span()
    value = text[start:end]
    is_count = "key" not in name[0].lower() and _COUNT.fullmatch(value) is not None
    if value.lower() in _PLAIN_VALUES or (is_count and "token" in name[0].lower()):
        return None  # engines count tokens: "#new-token: 7"
    return start, end


def _without_run(found: re.Match[str]) -> str:
    run = found[0]
    mixed = any(c.isdigit() for c in run) and any(c.isalpha() for c in run)
    return REDACTED if mixed else run


class LineScrubber:
    """Bytes in, whole redacted lines out, whatever the pieces in which they arrive.

    Holds at most ``LINE_BYTES_MAX`` plus the longest secret of one line.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = bytearray()
        self._cut_count = 0
        """Bytes of the present line that were already thrown away."""
        self._after_gap = False
        self._skip_newline = False

    def feed(self, data: bytes) -> bytes:
        """Complete lines so far, each ended by a newline. A lone ``\\r`` ends a line too."""
        if self._skip_newline and data.startswith(b"\n"):
            data = data[1:]
        if data:
            self._skip_newline = data.endswith(b"\r")
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        lines = b""
        if end:
            lines = self._finish_first(data[:end])
            data = data[end:]
        self._hold(data)
        return lines

    def gap(self) -> int:
        """Output was lost here. The pieces of lines on both sides are no whole lines: drop them.

        Returns:
            Bytes dropped that had been held.
        """
        dropped = len(self._held) + self._cut_count
        self._held.clear()
        self._cut_count = 0
        self._after_gap = True
        return dropped

    def close(self) -> bytes:
        """The last line, if it was never ended."""
        if not self._held and not self._cut_count:
            return b""
        return self._finish_first(b"\n")

    def _finish_first(self, lines: bytes) -> bytes:
        if self._after_gap:
            self._after_gap = False
            lines = lines[lines.find(b"\n") + 1 :]
        elif self._cut_count:
            first, _, lines = lines.partition(b"\n")
            self._hold(first)
            cut = self._cut_line(bytes(self._held), self._cut_count)
            self._held.clear()
            self._cut_count = 0
            return cut + self._scrub(lines)
        lines = bytes(self._held) + lines
        self._held.clear()
        return self._scrub(lines)

    def _hold(self, data: bytes) -> None:
        if self._after_gap:
            return
        room = max(0, LINE_BYTES_MAX + self._redactor.hold_bytes - len(self._held))
        self._held += data[:room]
        self._cut_count += max(0, len(data) - room)

    def _scrub(self, lines: bytes) -> bytes:
        if len(lines) <= LINE_BYTES_MAX:
            return self._encode(self._redactor.redact(lines.decode(errors="replace")))
        out = []
        short: list[bytes] = []
        for line in lines.splitlines(keepends=True) if b"\n" in lines else [lines]:
            if len(line) <= LINE_BYTES_MAX:
                short.append(line)
                continue
            out += [self._scrub_short(short), self._cut_line(line.rstrip(b"\n"), 0)]
            short = []
        return b"".join([*out, self._scrub_short(short)])

    def _scrub_short(self, lines: list[bytes]) -> bytes:
        return self._encode(self._redactor.redact(b"".join(lines).decode(errors="replace")))

    def _cut_line(self, line: bytes, cut_count: int) -> bytes:
        hold = self._redactor.hold_bytes
        head = line[: LINE_BYTES_MAX + hold]
        text = self._redactor.redact(head.decode(errors="replace"))
        # The end may be the first half of a secret: only what lies before it is shown.
        shown = self._encode(text[:-hold])[:LINE_BYTES_MAX].decode(errors="ignore")
        left_out = cut_count + len(line) - len(shown.encode())
        return f"{shown} [line cut: about {left_out} more bytes]\n".encode()

    @staticmethod
    def _encode(text: str) -> bytes:
        return text.encode(errors="replace")

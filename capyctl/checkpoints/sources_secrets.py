"""Reads the owner-only files that documents name as ``secret://<name>``, and the Hub's token."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from capyctl.contracts.checkpoints import Unfetchable

SECRET_BYTES_MAX = 64 << 10
_SCHEME = "secret://"


def read_secret(folder: Path, reference: str) -> str:
    """The text of ``secret://<name>``: the file ``<folder>/<name>``, stripped.

    Raises:
        Unfetchable: ``secret_unavailable``. The text names the reference, never the content.
    """
    name = reference.removeprefix(_SCHEME)
    if "/" in name or name in ("", ".", ".."):
        raise _unavailable(reference, "is not the name of a file")
    return read_owner_text(folder / name, reference)


def read_owner_text(path: Path, called: str) -> str:
    """One line out of a file that only its owner may read, stripped.

    Raises:
        Unfetchable: ``secret_unavailable``.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _unavailable(called, "is not a plain file")
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                raise _unavailable(
                    called, "must belong to capyctl's user, and nobody else may read it: chmod 600"
                )
            text = file.read(SECRET_BYTES_MAX + 1).decode("ascii").strip()
    except OSError as problem:
        raise _unavailable(called, f"cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise _unavailable(called, "holds something else than a line of text") from None
    if not text or len(text) > SECRET_BYTES_MAX or not text.isprintable() or " " in text:
        raise _unavailable(called, "holds something else than a line of text")
    return text


def _unavailable(called: str, what: str) -> Unfetchable:
    return Unfetchable("secret_unavailable", f"{called} {what}", terminal=True)

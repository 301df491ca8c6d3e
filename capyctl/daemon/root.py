"""The state root: one daemon at a time, and where it says it listens."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from capyctl.config.owner_files import write_owner_file

SECRET_BYTES = 32


class StateRootBusy(Exception):
    """Another daemon uses this state root."""


@contextlib.contextmanager
def held_root(root: Path) -> Iterator[None]:
    """Hold the exclusive lock of a state root for the length of the block.

    Raises:
        StateRootBusy: another process holds it.
        OSError: the root cannot be made or opened.
    """
    owner_folder(root)
    descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateRootBusy(
                f"another capyctl runs with state directory {root}; stop it, or choose "
                "another --state-dir"
            ) from None
        yield
    finally:
        os.close(descriptor)


def owner_folder(path: Path) -> Path:
    """``path``, made owner-only if it is not there.

    Raises:
        OSError: it cannot be made, or is no folder.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as problem:
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path)) from problem
    return path


def launch_secret(root: Path) -> bytes:
    """The owner-only secret that launch keys are derived from; made at first use.

    Raises:
        OSError: it cannot be read or made.
        ValueError: the file is not what this wrote.
    """
    path = owner_folder(root / "identity") / "launch-secret"
    if not path.exists():
        write_owner_file(path, secrets.token_hex(SECRET_BYTES) + "\n")
    found = bytes.fromhex(path.read_text().strip())
    if len(found) != SECRET_BYTES:
        raise ValueError(f"{path} is damaged: restore it from the backup of the state directory")
    return found

"""The two secrets of a standalone role: made once, kept owner-only, never shown."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

import attrs

from capyctl.config.problems import ConfigProblem, InvalidDocument, ProblemClass

TOKEN_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{32,256}")
_LINES = ("api_key", "admin_token")
_FILE_MAX_BYTES = 4096
_GROUP_OR_OTHERS = 0o077
_WRITABLE_BY_OTHERS = 0o022


@attrs.frozen(kw_only=True)
class Credentials:
    """`api_key` opens the inference endpoint, `admin_token` the management API."""

    api_key: str = attrs.field(repr=False)
    admin_token: str = attrs.field(repr=False)


def credentials_path(state_root: Path) -> Path:
    return state_root / "identity" / "credentials"


def ensure_credentials(state_root: Path) -> Credentials:
    """Read ``<state root>/identity/credentials``, made with fresh 256-bit secrets if missing.

    Directories are made 0700, the file 0600, whole or not at all.

    Raises:
        InvalidDocument: the file or a directory above it is open to others, it is not what
            this wrote, both secrets are equal, or a state root that served before lost it.
    """
    check_state_root(state_root)
    path = credentials_path(state_root)
    if not path.exists() and not path.is_symlink():
        if _served_before(state_root):
            raise _refused(path, "lost: this state root served before; restore its backup")
        _write(path)
    return read_credentials(state_root)


def read_credentials(state_root: Path) -> Credentials:
    """As `ensure_credentials`, without making anything."""
    path = credentials_path(state_root)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as problem:
        raise _refused(path, problem.strerror or "cannot be read") from problem
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in (os.getuid(), 0):
            raise _refused(path, "not a file of this user")
        if stat.S_IMODE(facts.st_mode) & _GROUP_OR_OTHERS:
            raise _refused(path, "open to other users; set its mode to 0600")
        body = file.read(_FILE_MAX_BYTES + 1)
    return _parse(body, path)


def check_state_root(state_root: Path) -> None:
    """Refuse a state root that others could replace under us.

    Every directory above it, and itself, belongs to root or this user and is not writable by
    others; a sticky directory of root, such as the system's temporary one, may be. The path is
    absolute and has no link in it.

    Raises:
        InvalidDocument: names the directory and what is wrong with it.
    """
    if not state_root.is_absolute() or os.path.normpath(state_root) != str(state_root):
        raise _refused(state_root, "state_dir must be an absolute path without . and ..")
    for folder in (*reversed(state_root.parents), state_root):
        try:
            facts = folder.lstat()
        except FileNotFoundError:
            return
        except OSError as problem:
            raise _refused(folder, problem.strerror or "cannot be looked at") from problem
        _check_folder(folder, facts)


def _check_folder(folder: Path, facts: os.stat_result) -> None:
    if stat.S_ISLNK(facts.st_mode):
        raise _refused(folder, "a symbolic link; name the directory it leads to")
    if not stat.S_ISDIR(facts.st_mode):
        raise _refused(folder, "not a directory")
    if facts.st_uid not in (os.getuid(), 0):
        raise _refused(folder, "belongs to another user")
    sticky_of_root = facts.st_uid == 0 and facts.st_mode & stat.S_ISVTX
    if facts.st_mode & _WRITABLE_BY_OTHERS and not sticky_of_root:
        raise _refused(folder, "writable by other users")


def _served_before(state_root: Path) -> bool:
    return (state_root / "srv.sqlite3").exists()


def _write(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = "".join(f"{name}: {secrets.token_urlsafe(TOKEN_BYTES)}\n" for name in _LINES)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(fresh, flags, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _parse(body: bytes, path: Path) -> Credentials:
    lines = [line.partition(": ") for line in body.decode(errors="replace").splitlines()]
    if [name for name, _, _ in lines] != list(_LINES):
        # Not as the file has them, which the log would take for the secrets themselves.
        raise _refused(path, "expected two lines, for api_key and admin_token, and nothing else")
    values = [value for _, _, value in lines]
    if any(_TOKEN.fullmatch(value) is None for value in values):
        raise _refused(path, "a secret has 32 to 256 letters, digits and ._~+/=-")
    if values[0] == values[1]:
        raise _refused(path, "api_key and admin_token must differ")
    return Credentials(api_key=values[0], admin_token=values[1])


def _refused(path: Path, detail: str) -> InvalidDocument:
    problem = ConfigProblem(kind=ProblemClass.IO, path=str(path), detail=detail)
    return InvalidDocument(problem, "standalone")

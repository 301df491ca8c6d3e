"""The two secrets of a role that serves: made once, kept owner-only, never shown."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from pathlib import Path

import attrs

from capyctl.config.owner_files import (
    OwnerFileUnusable,
    read_owner_file,
    write_new_owner_file,
)
from capyctl.config.problems import ConfigProblem, InvalidDocument, ProblemClass

TOKEN_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{32,256}")
_NAMES = ("api_key", "admin_token")
_FILE_MAX_BYTES = 4096
_WRITABLE_BY_OTHERS = 0o022


@attrs.frozen(kw_only=True)
class Credentials:
    """`api_key` opens the inference endpoint, `admin_token` the management API."""

    api_key: str = attrs.field(repr=False)
    admin_token: str = attrs.field(repr=False)


FILES = {"standalone": "credentials", "server": "server-credentials.json"}
"""By role, below ``identity``: lines for a standalone role, a JSON object for a server."""


def credentials_path(state_root: Path, role: str = "standalone") -> Path:
    return state_root / "identity" / FILES[role]


def ensure_credentials(state_root: Path, role: str = "standalone") -> Credentials:
    """Read the role's credentials, made with fresh 256-bit secrets if missing.

    Directories are made 0700, the file 0600, whole or not at all.

    Raises:
        InvalidDocument: the file or a directory above it is open to others, it is not what
            this wrote, both secrets are equal, or a state root that served before lost it.
    """
    check_state_root(state_root)
    path = credentials_path(state_root, role)
    if not path.exists() and not path.is_symlink():
        if _served_before(state_root):
            raise _refused(path, _lost(state_root, role), role)
        made = {name: secrets.token_urlsafe(TOKEN_BYTES) for name in _NAMES}
        lines = "".join(f"{name}: {secret}\n" for name, secret in made.items())
        # One a line, as scripts that look for them with `sed` expect it.
        text = json.dumps(made, indent=2) + "\n" if role == "server" else lines
        write_new_owner_file(path, text)  # Not over those of another command at the same time.
    return read_credentials(state_root, role)


def read_credentials(state_root: Path, role: str = "standalone") -> Credentials:
    """As `ensure_credentials`, without making anything."""
    path = credentials_path(state_root, role)
    try:
        body = read_owner_file(path, bytes_max=_FILE_MAX_BYTES)
    except FileNotFoundError as problem:
        raise _refused(path, problem.strerror, role) from problem
    except OwnerFileUnusable as problem:
        raise _refused(path, problem.detail, role) from problem
    values = _parse_object(body, path) if role == "server" else _parse_lines(body, path)
    if any(_TOKEN.fullmatch(value) is None for value in values):
        raise _refused(path, "a secret has 32 to 256 letters, digits and ._~+/=-", role)
    if values[0] == values[1]:
        raise _refused(path, "api_key and admin_token must differ", role)
    return Credentials(api_key=values[0], admin_token=values[1])


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
    return (state_root / "srv.sqlite3").is_file()


def _lost(state_root: Path, role: str) -> str:
    for other in FILES:
        if other != role and credentials_path(state_root, other).exists():
            return f"not there: this state root is a {other} role's; choose another --state-dir"
    return "lost: this state root served before; restore its backup"


def _parse_lines(body: bytes, path: Path) -> list[str]:
    lines = [line.partition(": ") for line in body.decode(errors="replace").splitlines()]
    if [name for name, _, _ in lines] != list(_NAMES):
        # Not as the file has them, which the log would take for the secrets themselves.
        raise _refused(path, "expected two lines, for api_key and admin_token, and nothing else")
    return [value for _, _, value in lines]


def _parse_object(body: bytes, path: Path) -> list[str]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    named = isinstance(found, dict) and sorted(found) == sorted(_NAMES)
    if not named or not all(isinstance(value, str) for value in found.values()):
        raise _refused(path, "expected a JSON object with api_key and admin_token alone", "server")
    return [found[name] for name in _NAMES]


def _refused(path: Path, detail: str | None, role: str = "standalone") -> InvalidDocument:
    detail = detail or "cannot be read"
    problem = ConfigProblem(kind=ProblemClass.IO, path=str(path), detail=detail)
    return InvalidDocument(problem, role)

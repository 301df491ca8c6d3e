"""The script of the management page: run it, and tell whether its lines are those of the page."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SCRIPT = Path(__file__).with_name("controller.sh")
SCRIPT_SHA256 = "cf01c604b0df8d3fd5f38460b592e02f1873ecb2648296cad65ad22fb67aa93a"
"""Of the script as it is printed: it has to run without a change."""
SCRIPT_S_MAX = 60.0
PORTS = (7443, 8443)

ON_A_SERVER = {
    "CREDENTIALS=~/.local/state/capyctl/identity/credentials": (
        "CREDENTIALS=~/.local/state/capyctl/identity/server-credentials.json"
    ),
    "TOKEN=$(sed -n 's/^admin_token: //p' \"$CREDENTIALS\")": (
        'TOKEN=$(sed -n \'s/.*"admin_token": *"\\([^"]*\\)".*/\\1/p\' "$CREDENTIALS")'
    ),
    "KEY=$(sed -n 's/^api_key: //p' \"$CREDENTIALS\")": (
        'KEY=$(sed -n \'s/.*"api_key": *"\\([^"]*\\)".*/\\1/p\' "$CREDENTIALS")'
    ),
}
"""The lines of the page's script that read credentials, as the page has them for a server."""

ULID = "[0-9A-HJKMNP-TV-Z]{26}"
LINES = (
    rf"created {ULID}, revision 1",
    rf"start accepted: operation {ULID}",
    r'\{"name":"my-model","observed_state":"ready","ready":"1/1",'
    r'"instances":\[\{"index":0,"host_id":"[^"]+","observed_state":"ready"\}\]\}',
    rf"x-capyctl-request-id: {ULID}",
    r"x-request-id: check-my-model-\d+",
    r"stopped",
    r"deleted",
)
RETRYING = "retrying: checkpoint_digest_pending"
"""May stand between the first line and the second, as often as the measuring takes."""


@contextlib.contextmanager
def default_ports() -> Iterator[str | None]:
    """Ours alone for the block; says who is in the way when a stranger listens there."""
    path = Path(tempfile.gettempdir()) / f"capyctl-tests-ports-{os.getuid()}.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield next(filter(None, map(_taken, PORTS)), None)


def _taken(port: int) -> str | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as problem:
            return f"port {port} is taken by another program: {problem}"
    return None


def script_on_a_server(folder: Path) -> Path:
    """The script with the lines that the page has for a server, written below this folder."""
    text = SCRIPT.read_text()
    for line, instead in ON_A_SERVER.items():
        assert text.count(line) == 1
        text = text.replace(line, instead)
    path = folder / "controller.sh"
    path.write_text(text)
    return path


def run_script(
    script: Path, home: Path, *, within_s: float = SCRIPT_S_MAX
) -> tuple[int, list[str]]:
    """Exit status and lines, those of stderr among them as they came."""
    done = subprocess.run(
        ["sh", str(script)],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=within_s,
        check=False,
        text=True,
    )
    return done.returncode, done.stdout.replace("\r", "").splitlines()


def differs(lines: list[str]) -> str | None:
    """What is not as the page prints it; None when all is."""
    kept = [line for at, line in enumerate(lines) if not (at > 0 and line == RETRYING)]
    retries = [at for at, line in enumerate(lines) if line == RETRYING]
    if retries != list(range(1, 1 + len(retries))):
        return f"retrying at lines {retries}"
    if len(kept) != len(LINES):
        return f"{len(kept)} lines, {len(LINES)} expected"
    for line, expected in zip(kept, LINES, strict=True):
        if not re.fullmatch(expected, line):
            return f"{line!r} is not {expected!r}"
    return None

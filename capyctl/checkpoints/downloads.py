"""Runs the download program as a child process, and ends it with the task that waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from capyctl.checkpoints.downloads_source import Request
from capyctl.contracts.checkpoints import Progress, Unfetchable

SILENCE_S_MAX = 60.0
"""The program gives a sign of life twice a second."""
LINE_BYTES_MAX = 64 << 10
_PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "PYTHONPATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "HF_HUB_OFFLINE",
    *(name for one in ("HTTP", "HTTPS", "ALL", "NO") for name in (f"{one}_PROXY", f"{one}_proxy")),
    *(f"{one}_proxy" for one in ("http", "https", "all", "no")),
)
_ADDED = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}

Admit = Callable[[int], Awaitable[int]]
"""Reserves room for so many bytes in all (0: unknown); how many may come. Raises Unfetchable."""


async def download(request: Request, *, admit: Admit, progress: Progress) -> int:
    """Bytes of the source's files, once they are in place. Secrets go through a pipe only.

    Cancelling kills the program; what it wrote stays, and the next call goes on from there.

    Raises:
        Unfetchable: as the program says, or ``interrupted`` when it ended without a word.
    """
    try:
        process = await _open_process()
    except OSError as problem:
        detail = f"the download program cannot be started: {problem.strerror}"
        raise Unfetchable("io_error", detail) from None
    try:
        return await _converse(process, request, admit, progress)
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                await pipe.aclose()


async def _open_process() -> trio.Process:
    environ = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return await trio.lowlevel.open_process(
        [sys.executable, "-m", "capyctl.checkpoints.downloads_program"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**environ, **_ADDED},
        start_new_session=True,
    )


async def _converse(
    process: trio.Process, request: Request, admit: Admit, progress: Progress
) -> int:
    await _send(process, attrs.asdict(request))
    lines = _Lines(process)
    while (line := await lines.next_line()) is not None:
        if "finished" in line:
            return int(line["finished"])
        if "failed" in line:
            raise Unfetchable(**line["failed"])
        if "plan" in line:
            await _send(process, {"bytes_max": await admit(int(line["plan"]))})
        else:
            progress(int(line["done"]), int(line["total"]))
    status = await process.wait()
    raise Unfetchable("interrupted", f"the download program ended with status {status}")


async def _send(process: trio.Process, line: dict[str, Any]) -> None:
    assert process.stdin is not None
    try:
        await process.stdin.send_all(json.dumps(line).encode() + b"\n")
    except trio.BrokenResourceError:
        raise Unfetchable("interrupted", "the download program is gone") from None


class _Lines:
    """What the program says, line by line."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdout is not None
        self._stdout = process.stdout
        self._held = b""

    async def next_line(self) -> dict[str, Any] | None:
        """None once it has ended. One that falls silent is given up: Unfetchable."""
        with trio.move_on_after(SILENCE_S_MAX) as bound:
            while b"\n" not in self._held:
                chunk = await self._stdout.receive_some()
                if not chunk or len(self._held) > LINE_BYTES_MAX:
                    return None
                self._held += chunk
        if bound.cancelled_caught:
            detail = f"the download program was silent for {SILENCE_S_MAX:g} s"
            raise Unfetchable("interrupted", detail)
        line, _, self._held = self._held.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

"""The program that downloads one source, in a process of its own that can be ended at any time.

It reads one request, a line of JSON, from its standard input and writes lines of JSON:

* ``{"plan": bytes}``: wants room for so many bytes in all (0: nobody knows). It waits for
  ``{"bytes_max": n}`` before it writes.
* ``{"done": bytes, "total": bytes}``: how far it is; twice a second, also as a sign of life.
* ``{"finished": bytes}``, or ``{"failed": {…}}`` with the arguments of `Unfetchable`: the end.

The end of its standard input, also by the death of the daemon, ends it at once.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from typing import IO, Any

from capyctl.checkpoints.downloads_source import Request, fetch
from capyctl.contracts.checkpoints import Unfetchable

SIGN_PAUSE_S = 0.5


class Pipes:
    """The daemon, at the other end. Implements `downloads_source.Daemon`."""

    def __init__(self, incoming: IO[str], outgoing: IO[str]) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._done = 0
        self._total = 0

    def listen(self) -> None:
        """For a thread: until the daemon is gone, and then nobody is."""
        for line in self._incoming:
            self._lines.put(json.loads(line))
        os._exit(3)

    def signs(self) -> None:
        """For a thread: say how far it is for as long as this process lives."""
        while True:
            time.sleep(SIGN_PAUSE_S)
            self.sign()

    def sign(self) -> None:
        self.say({"done": self._done, "total": self._total})

    def say(self, line: dict[str, Any]) -> None:
        with self._lock:
            try:
                self._outgoing.write(json.dumps(line) + "\n")
                self._outgoing.flush()
            except OSError:
                os._exit(3)

    def hear(self) -> dict[str, Any]:
        return self._lines.get()

    def admit(self, total_bytes: int | None) -> int:
        self._total = total_bytes or 0
        self.say({"plan": self._total})
        bytes_max = int(self.hear()["bytes_max"])
        self.sign()
        return bytes_max

    def expect(self, total_bytes: int) -> None:
        self._total = total_bytes

    def got(self, change: int) -> None:
        with self._lock:
            self._done += change

    def start_over(self) -> None:
        with self._lock:
            self._done = 0


def main() -> int:
    """Exit status 0 whenever the last line says how it ended."""
    outgoing = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    daemon = Pipes(sys.stdin, outgoing)
    threading.Thread(target=daemon.listen, daemon=True).start()
    stated = daemon.hear()
    for name in ("files", "allowed_hosts", "pauses_s"):
        if isinstance(stated.get(name), list):
            stated[name] = tuple(stated[name])
    request = Request(**stated)
    threading.Thread(target=daemon.signs, daemon=True).start()
    try:
        daemon.say({"finished": fetch(request, daemon)})
    except Unfetchable as problem:
        daemon.say(
            {
                "failed": {
                    "reason": problem.reason,
                    "detail": problem.detail,
                    "terminal": problem.terminal,
                    "again": problem.again,
                }
            }
        )
    except Exception as problem:
        # A text might hold an address; the type does not.
        what = f"the download program failed: {type(problem).__name__}"
        daemon.say({"failed": {"reason": "io_error", "detail": what}})
    return 0


if __name__ == "__main__":
    sys.exit(main())

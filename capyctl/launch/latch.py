"""A program that waits on a pipe for permission and then becomes the engine, or exits.

It runs as ``python -I -S latch.py`` in a session of its own, with the control socket as
descriptor 3: it reads ``<length>\\n`` and a JSON object (argv, env, cwd), answers ``r``, reads
``go``, answers ``+`` and executes. Descriptor 3 closes on a successful exec; an exec that
fails is told on it in words. End of file before ``go`` means that its daemon is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, NoReturn

CONTROL = 3
EXIT_DISCARDED = 125
EXIT_NOT_RUNNABLE = 126
EXIT_NOT_FOUND = 127
ORDER_BYTES_MAX = 8 * 1024 * 1024
LENGTH_DIGITS_MAX = 8


class Discarded(Exception):
    """The other end closed before it said go."""


def main() -> NoReturn:
    os.set_inheritable(CONTROL, False)
    try:
        order = json.loads(_read_exactly(_read_length()))
        os.write(CONTROL, b"r")
        if _read_exactly(2) != b"go":
            raise Discarded
        os.write(CONTROL, b"+")
    except (Discarded, OSError, ValueError):
        os._exit(EXIT_DISCARDED)
    _become(order)


def _read_length() -> int:
    digits = b""
    while len(digits) <= LENGTH_DIGITS_MAX:
        byte = _read_exactly(1)
        if byte == b"\n":
            return min(int(digits), ORDER_BYTES_MAX)
        digits += byte
    raise ValueError("no length")


def _read_exactly(count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = os.read(CONTROL, count - len(data))
        if not more:
            raise Discarded
        data += more
    return data


def _become(order: dict[str, Any]) -> NoReturn:
    argv = order["argv"]
    try:
        if order["cwd"] is not None:
            os.chdir(order["cwd"])
        _reset_signals()
        _close_extra()
        os.execvpe(argv[0], argv, order["env"])
    except (OSError, ValueError) as error:
        place = getattr(error, "filename", None) or argv[0]
        reason = getattr(error, "strerror", None) or str(error)
        told = f"cannot run {place}: {reason}".encode(errors="replace")
        _tell(2, b"capyctl: " + told + b"\n")
        _tell(CONTROL, told)
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        os._exit(EXIT_NOT_FOUND if missing else EXIT_NOT_RUNNABLE)


def _tell(descriptor: int, told: bytes) -> None:
    try:
        os.write(descriptor, told)
    except OSError:  # nobody listens any more; the exit code still tells
        return


def _reset_signals() -> None:
    """Python ignores SIGPIPE and SIGXFSZ, and what is ignored stays so through an exec."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _close_extra() -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > CONTROL:
            try:
                os.close(int(name))
            except OSError:  # the descriptor of this very listing
                continue


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit("usage: latch.py, with a control socket as descriptor 3")
    main()

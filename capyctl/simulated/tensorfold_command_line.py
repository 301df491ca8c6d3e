"""Reads TensorFold's command line: every option that matters, no others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from capyctl.simulated.command_line import BadUsage, Options

_VALUES = """
name host port context parallel backend kv-dtype api-key api-key-file snapshot-dir drafter
max-tokens temperature top-p top-k sleep-token-env sleep-timeout sleep-cache-dir tp rank master
master-port lane-kernels
"""

_SWITCHES = """
no-update-check no-drafts thinking no-thinking metrics-open enable-sleep-mode vision-urls
ple-on-ssd
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadUsage(message)


def parse_tensorfold(arguments: Sequence[str]) -> Options:
    """``MODEL --option value …``, what follows ``tensorfold serve``.

    Raises:
        BadUsage: unknown option, a value or the model is missing.
    """
    parser = _Parser(prog="tensorfold serve", add_help=False)
    parser.add_argument("model")
    for name in _VALUES.split():
        parser.add_argument(f"--{name}", dest=name)
    for name in _SWITCHES.split():
        parser.add_argument(f"--{name}", dest=name, action="store_true")
    found = vars(parser.parse_args(list(arguments)))
    model = str(found.pop("model"))
    values: dict[str, tuple[str, ...]] = {
        name: ("" if value is True else str(value),)
        for name, value in found.items()
        if value is not None and value is not False
    }
    return Options(values=values, positional=(model,))

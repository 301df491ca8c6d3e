"""Reads SGLang's command line as its own parser does: every option that matters, no others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from capyctl.simulated.command_line import BadUsage, Options

_VALUES = """
model-path served-model-name host port api-key admin-api-key dtype quantization kv-cache-dtype
context-length max-running-requests max-queued-requests max-total-tokens mem-fraction-static
chunked-prefill-size tokenizer-worker-num tool-call-parser reasoning-parser log-level
log-level-http load-format max-mamba-cache-size mamba-full-memory-ratio speculative-algorithm
speculative-num-steps speculative-eagle-topk speculative-num-draft-tokens
speculative-draft-model-path cuda-graph-max-bs watchdog-timeout random-seed schedule-policy
attention-backend sampling-backend grammar-backend page-size stream-interval device tp-size
pp-size dp-size base-gpu-id download-dir revision crash-dump-folder weight-cache-mode
chat-template
"""

_SWITCHES = """
enable-metrics enable-cache-report enable-memory-saver enable-weights-cpu-backup
enable-draft-weights-cpu-backup trust-remote-code disable-cuda-graph language-model-only
skip-server-warmup log-requests sleep-on-idle delete-ckpt-after-loading disable-radix-cache
enable-mixed-chunk enable-linear-replayssm-spec enable-torch-compile disable-overlap-schedule
is-embedding
stream-response-default-include-usage incremental-streaming-output enable-custom-logit-processor
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadUsage(message)


def parse_sglang(arguments: Sequence[str]) -> Options:
    """``--model-path PATH --option value …``; ``=`` and unambiguous prefixes are taken.

    Raises:
        BadUsage: unknown option, or a value is missing.
    """
    parser = _Parser(prog="sglang serve", add_help=False)
    for name in _VALUES.split():
        parser.add_argument(f"--{name}", dest=name)
    for name in _SWITCHES.split():
        parser.add_argument(f"--{name}", dest=name, action="store_true")
    found = vars(parser.parse_args(list(arguments)))
    values: dict[str, tuple[str, ...]] = {
        name: ("" if value is True else str(value),)
        for name, value in found.items()
        if value is not None and value is not False
    }
    return Options(values=values)

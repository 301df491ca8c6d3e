"""`simulate checkpoint`: writes model files of any size that take no room."""

from __future__ import annotations

from pathlib import Path

from capyctl.cli.call import Call
from capyctl.cli.failure import CommandFailed
from capyctl.cli.paths import path_refused
from capyctl.cli.render import summary
from capyctl.domain.units import gib, parse_bytes


def checkpoint(call: Call) -> int:
    """`simulate checkpoint`"""
    from capyctl.simulated.checkpoint_writer import write_checkpoint

    options = call.options
    try:
        weights_bytes = parse_bytes(options.weights)
    except ValueError as problem:
        raise CommandFailed("usage", f"--weights: {problem}") from problem
    folder = Path(options.folder).absolute()
    try:
        model = write_checkpoint(
            folder, weights_bytes=weights_bytes, format=options.weights_format, seed=options.seed
        )
    except FileExistsError as problem:
        if problem.errno is None:
            raise CommandFailed("invalid_request", str(problem)) from problem
        raise path_refused(problem, option="DIR", path=folder) from problem
    except ValueError as problem:
        raise CommandFailed("invalid_request", f"--weights: {problem}") from problem
    except OSError as problem:
        raise path_refused(problem, option="DIR", path=folder) from problem
    value = {"model": str(model), "weights_bytes": weights_bytes, "format": options.weights_format}
    values = [("Model", model), ("Weights", f"{gib(weights_bytes)}, sparse")]
    call.show(value, summary(f"Wrote a simulated {options.weights_format} checkpoint", values))
    return 0

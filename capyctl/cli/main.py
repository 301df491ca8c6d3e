"""The `capyctl` command: reads its arguments, loads the one command they mean, and runs it."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Sequence

from capyctl.cli.call import Call
from capyctl.cli.exit_codes import INTERRUPTED, OK
from capyctl.cli.failure import CommandFailed
from capyctl.cli.grammar import build_parser
from capyctl.cli.paths import path_refused
from capyctl.cli.render import to_json
from capyctl.cli.surroundings import Surroundings, drop_output

_JSON_WORDS = ("--json", "--format=json")


def main(argv: Sequence[str] | None = None, here: Surroundings | None = None) -> int:
    """Run one command; its exit status. Failures are said on standard error."""
    words = sys.argv[1:] if argv is None else list(argv)
    here = here or Surroundings()
    try:
        return _run(words, here)
    except CommandFailed as failure:
        _say_failure(failure, here, as_json=_wants_json(words))
        return failure.exit_status
    except KeyboardInterrupt:
        interrupted = CommandFailed("interrupted", "what was sent goes on; nothing was undone")
        _say_failure(interrupted, here, as_json=_wants_json(words))
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone.
        drop_output()
        return OK
    except OSError as problem:
        refused = path_refused(problem)
        _say_failure(refused, here, as_json=_wants_json(words))
        return refused.exit_status


def _run(words: list[str], here: Surroundings) -> int:
    parser = build_parser()
    options, unknown = parser.parse_known_args(words)
    if unknown:
        asked = (options.action, getattr(options, "resource", None))
        leaf = " ".join(("capyctl", *(word for word in asked if word)))
        raise CommandFailed(
            "usage",
            f"unrecognized arguments: {' '.join(unknown)}; `{leaf} --help` shows what there is",
        )
    if options.version:
        call = Call(options=options, here=here)
        call.show({"version": version()}, f"capyctl {version()}")
        return OK
    run: str | None = getattr(options, "run", None)
    if run is None:
        parser.print_help(here.err)
        raise CommandFailed("usage", "name an action")
    module, _, name = run.partition(":")
    command: Callable[[Call], int] = getattr(importlib.import_module(module), name)
    return command(Call(options=options, here=here))


def version() -> str:
    """The installed version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("capyctl")
    except PackageNotFoundError:
        return "unknown"


def _wants_json(words: list[str]) -> bool:
    """Also for arguments that could not be parsed."""
    pairs = itertools.pairwise(words)
    return any(word in _JSON_WORDS for word in words) or ("--format", "json") in pairs


def _say_failure(failure: CommandFailed, here: Surroundings, *, as_json: bool) -> None:
    if as_json:
        value = {"code": failure.code, "message": failure.message}
        if failure.details:
            value["details"] = dict(failure.details)  # type: ignore[assignment]  # nested on purpose
        text = to_json(value, indented=here.is_terminal(here.err))
    else:
        text = f"error [{failure.code}]: {failure.message}"
    print(text, file=here.err, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""`start standalone`: hands its flags to the role, which takes over this process."""

from __future__ import annotations

from capyctl.cli.call import Call
from capyctl.cli.grammar import STANDALONE_FLAGS, destination


def start(call: Call) -> int:
    """`start standalone`. Returns when the role ends."""
    from capyctl.daemon.serve import run_standalone

    return run_standalone(
        given_flags(call), list(call.options.set), call.options.simulate, _log_format(call)
    )


def given_flags(call: Call) -> dict[str, str]:
    """The flags that were given, by name with dashes; a switch has the value ``true``."""
    found: dict[str, str] = {}
    for flag in ("--config", "--state-dir", *(one.name for one in STANDALONE_FLAGS)):
        value = call.option(destination(flag))
        if value is not None and value is not False:
            found[flag] = "true" if value is True else str(value)
    return found


def _log_format(call: Call) -> str | None:
    """None: text on a terminal, JSON lines elsewhere."""
    return "json" if call.wants_json else call.option("output")

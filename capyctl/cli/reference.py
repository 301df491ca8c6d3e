"""Writes the reference page of the command from its grammar: `python -m capyctl.cli.reference`."""

from __future__ import annotations

import argparse
import sys

from capyctl.cli.exit_codes import MEANINGS, STATUS
from capyctl.cli.grammar import DESCRIPTION, build_parser, leaf_parsers

COMMON = "common options"

_HEAD = f"""\
# The command

<!-- Written by `python -m capyctl.cli.reference`; a test compares it. Do not edit by hand. -->

{DESCRIPTION}

```
capyctl <action> <resource> [name] [options]
```

Results go to standard output, as text or, with `--json`, as JSON: indented on a terminal, one
line where it is piped. Errors go to standard error, as `error [<code>]: <message>` or, in JSON,
as an object with `code` and `message`. The exit status does not depend on the format.

## Which role a command talks to

The state directory is that of `--state-dir`, `CAPYCTL_STATE_DIR`, `state_dir` of the document
that `--config` or `CAPYCTL_CONFIG` names, `$XDG_STATE_HOME/capyctl`, or `~/.local/state/capyctl`.
An explicit document says which role is meant. Else it is the one that has been under the state
directory; a server or a standalone role goes before a host, and of these two the one that
answers is taken, or the command is refused as `role_ambiguous`.

The management address is that of `CAPYCTL_MANAGEMENT_ADDR`, the running role's record in `<state
directory>/run/management-address`, the role's document, or `127.0.0.1:7443`; it is always on
loopback. The admin token is read from `<state directory>/identity/credentials`, on a server from
`<state directory>/identity/server-credentials.json`, so run the command as the user that runs
capyctl.

A host has no management API: there, commands about models and hosts are refused as
`wrong_machine`, and belong on the server. What works on a host is `engine`, `join host`, `doctor
host`, `config show` and `validate config`.

## Requests that can be repeated

A command that changes something says its request identity first, on standard error. What it is
about to send lies in `<state directory>/requests/<identity>/request.json` before it is sent. The
same command with `--request-id <identity>` sends exactly that again: a change that was made is
answered with its first receipt and is not made twice. Another command under the same identity is
refused. A change that stays unanswered is sent again by the command itself, four times in all.
The newest 1,000 requests are kept.

## Waiting

`--wait` says on standard error what it waits for, since when, and until when at the latest: one
line that is rewritten on a terminal, a line for each change elsewhere. `start deployment --wait`
waits for the checkpoint's digest, downloads and an earlier stop first, within the start's window,
then until every instance serves, and ends with 0 only then. `stop`, `park` and `preinitialize`
wait until it is done, 10 s longer than their window at most, and end with 13 where it is not, or
was undone; a stop of what only hosts that are away still run ends with 25. What was accepted goes
on all the same. `delete deployment --stop` that cannot finish in time ends with 0, `"deleted":
false` and `"cleanup": "pending"`.
"""


def reference() -> str:
    """The whole page."""
    parser = build_parser()
    parts = [_HEAD, "## Options of every command\n", _options(parser, common=True)]
    parts.append("## Commands\n")
    for name, leaf in leaf_parsers(parser):
        parts.append(_command(name, leaf))
    parts.append(_exit_codes())
    return "\n".join(parts).replace("\n\n\n", "\n\n")


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    words = [name, *(str(one.metavar) for one in _positionals(parser)), "[options]"]
    if any(_is_missing_default(one) for one in parser._actions):
        words[-1:] = [_usage(one) for one in parser._actions if _is_missing_default(one)]
        words.append("[options]")
    text = [f"### {name}\n", f"{parser.description}\n", f"```\n{' '.join(words)}\n```\n"]
    positionals = "".join(f"- `{one.metavar}`: {one.help}\n" for one in _positionals(parser))
    return "\n".join([*text, positionals + _options(parser, common=False)])


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [
        one
        for one in parser._actions
        if not one.option_strings and not isinstance(one, argparse._SubParsersAction)
    ]


def _is_missing_default(action: argparse.Action) -> bool:
    return bool(action.option_strings) and action.required


def _options(parser: argparse.ArgumentParser, *, common: bool) -> str:
    lines = []
    for group in parser._action_groups:
        if (group.title == COMMON) != common:
            continue
        for action in group._group_actions:
            is_help = isinstance(action, argparse._HelpAction)
            if action.option_strings and not is_help:
                lines.append(f"- `{_usage(action)}`: {action.help}\n")
    return "".join(lines)


def _usage(action: argparse.Action) -> str:
    name = action.option_strings[-1]
    if action.nargs == 0:
        return name
    value = "|".join(action.choices) if action.choices else str(action.metavar)
    return f"{name} [{value}]" if action.nargs == "?" else f"{name} {value}"


def _exit_codes() -> str:
    by_status: dict[int, list[str]] = {status: [] for status in MEANINGS}
    for code, status in STATUS.items():
        by_status[status].append(f"`{code}`")
    rows = [
        f"| {status} | {meaning} | {', '.join(by_status[status]) or _others(status)} |"
        for status, meaning in MEANINGS.items()
    ]
    return "\n".join(
        ["## Exit status\n", "| status | meaning | codes |", "| --- | --- | --- |", *rows, ""]
    )


def _others(status: int) -> str:
    return "every code without a status of its own" if status == 2 else "-"


if __name__ == "__main__":
    sys.stdout.write(reference())

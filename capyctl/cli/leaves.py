"""How commands are put into the grammar: one leaf each, with the options that every one has."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from capyctl.cli.failure import CommandFailed
from capyctl.cli.suggesting import no_such_command

COMMANDS = "capyctl.cli.commands"


class Parser(argparse.ArgumentParser):
    """Fails like every command: with a code, and in JSON where that was asked for."""

    def error(self, message: str) -> NoReturn:
        hint = f"`{self.prog} --help` shows what there is"
        below = _below(self)
        if below is not None and message.endswith(f": {below.metavar}"):
            message = f"`{self.prog}` needs one of {', '.join(below.choices)}"
        joined = " " if message.endswith("?") else "; "
        raise CommandFailed("usage", f"{message}{joined}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            raise argparse.ArgumentError(None, no_such_command(self.prog, value, action.choices))
        super()._check_value(action, value)


def _below(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[Parser] | None:
    found = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return next(found, None)


class Leaves:
    """Adds commands ``<action> <resource>`` below one parser."""

    def __init__(self, top: argparse._SubParsersAction[Parser], actions: Mapping[str, str]) -> None:
        """``actions``: what each action with resources is said to do."""
        self._top = top
        self._helps = actions
        self._actions: dict[str, argparse._SubParsersAction[Parser]] = {}

    def add(self, words: str, run: str, help: str, *, output_format: bool = True) -> Parser:
        """A command; ``run`` names its function below `capyctl.cli.commands`."""
        action, _, resource = words.partition(" ")
        place, name = (self._below(action), resource) if resource else (self._top, action)
        leaf = place.add_parser(
            name,
            help=help,
            description=help[0].upper() + help[1:] + ".",
            allow_abbrev=False,
            argument_default=None,
        )
        add_everywhere(leaf, output_format=output_format)
        leaf.set_defaults(run=f"{COMMANDS}.{run}")
        return leaf

    def _below(self, action: str) -> argparse._SubParsersAction[Parser]:
        found = self._actions.get(action)
        if found is None:
            help = self._helps[action]
            parser = self._top.add_parser(
                action, help=help, description=help[0].upper() + help[1:] + ".", allow_abbrev=False
            )
            found = parser.add_subparsers(metavar="RESOURCE", required=True, dest="resource")
            self._actions[action] = found
        return found


def add_everywhere(parser: Parser, *, output_format: bool) -> None:
    """Options that may stand before the action or after the resource."""
    group = parser.add_argument_group("common options")
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS}
    if output_format:
        group.add_argument(
            "--format",
            dest="output",
            choices=("text", "json"),
            help="how the result is shown (text)",
            **hidden,
        )
    group.add_argument("--json", action="store_true", help="short for --format json", **hidden)
    group.add_argument("--state-dir", metavar="DIR", help="the role's state directory", **hidden)
    group.add_argument("--config", metavar="FILE", help="the role's document", **hidden)


def add_request_id(parser: Parser) -> None:
    parser.add_argument(
        "--request-id", metavar="ULID", help="recover an earlier run of this very command"
    )


def add_list(parser: Parser, flag: str, metavar: str, help: str) -> None:
    parser.add_argument(flag, action="append", default=[], metavar=metavar, help=help)


def revision(text: str) -> int:
    return _checked(text, lambda: int(text) if text.isdecimal() and int(text) > 0 else None)


def index(text: str) -> int:
    return _checked(text, lambda: int(text) if text.isdecimal() and len(text) <= 2 else None)


def kib(text: str) -> int:
    return _checked(
        text,
        lambda: (
            int(text) if text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= 256 else None
        ),
    )


def duration_ms(text: str) -> int:
    from capyctl.domain.units import parse_duration_s

    def read() -> int | None:
        try:
            return round(parse_duration_s(text) * 1000) or None
        except ValueError:
            return None

    return _checked(text, read)


def _checked(text: str, read: Callable[[], int | None]) -> int:
    found = read()
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used")
    return found

"""One call of the command: its options, its surroundings, and the way its result is shown."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import attrs

from capyctl.cli.failure import CommandFailed
from capyctl.cli.render import to_json
from capyctl.cli.surroundings import Surroundings, drop_output

if TYPE_CHECKING:
    from pathlib import Path

    from capyctl.cli.client import Client
    from capyctl.cli.role import Role


@attrs.frozen(kw_only=True)
class Call:
    """What every command is given."""

    options: argparse.Namespace
    here: Surroundings

    def option(self, name: str, default: Any = None) -> Any:
        """An option's value, also where the command has no such option."""
        return getattr(self.options, name, default)

    @property
    def wants_json(self) -> bool:
        return bool(self.option("json")) or self.option("output") == "json"

    def show(self, value: object, text: str) -> None:
        """The result: ``value`` as JSON where that is asked for, else ``text``."""
        out = self.here.out
        if self.wants_json:
            text = to_json(value, indented=self.here.is_terminal(out))
        try:
            print(text, file=out, flush=True)
        except BrokenPipeError:
            raise
        except OSError as problem:
            if out is sys.stdout:
                drop_output()
            raise CommandFailed(
                "internal",
                f"the result cannot be written: {problem.strerror}; what the command did is done",
            ) from problem

    def say(self, text: str) -> None:
        """A line beside the result, on standard error."""
        print(text, file=self.here.err, flush=True)

    def state_root(self) -> Path:
        from capyctl.cli.role import find_state_root

        return find_state_root(self)

    def role(self) -> Role:
        """Where the role that this command means is reached, with which token.

        Raises:
            CommandFailed: no credentials are there, or they cannot be read.
        """
        from capyctl.cli.role import find_role

        return find_role(self)

    def client(self) -> Client:
        """A client of that role."""
        from capyctl.cli.client import Client

        role = self.role()
        return Client(role, self.here)

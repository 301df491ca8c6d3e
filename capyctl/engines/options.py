"""What a family's command-line options count as: typed, reserved, by approval, or ordinary."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs


class OptionClass(enum.Enum):
    TYPED = "typed"
    """Has a field of its own in `engine_config`."""
    RESERVED = "reserved"
    """Capyctl's own; never anyone else's."""
    APPROVAL = "approval"
    """Only where the profile names it in `security.approved_options`."""
    EXTRA = "extra"
    """Ordinary."""


SHAPES_BY_APPROVAL = ("-path", "-dir", "-config")
"""Whatever ends like this may name files or code, so it needs approval whoever invents it."""


@attrs.frozen(kw_only=True)
class OptionTable:
    """The known options of one engine, by long name without the leading dashes."""

    family: str
    typed: Mapping[str, str]
    """Option to its `engine_config` field; refused in `extra_args`."""
    either: Mapping[str, str] = attrs.field(factory=dict)
    """Option to field where both spellings are fine, but not at once."""
    reserved: frozenset[str]
    reserved_endings: tuple[str, ...] = ()
    approval: frozenset[str]
    approval_paths: frozenset[str]
    """Approval options whose value is one path or more."""
    aliases: Mapping[str, str] = attrs.field(factory=dict)
    """Other long spellings of an option."""
    two_values: frozenset[str] = frozenset()
    abbreviates: bool
    """The engine's parser takes any unambiguous beginning of a name."""
    inline_values: bool
    """The engine's parser takes ``--name=value``."""
    always_rendered: frozenset[str] = frozenset()
    """Options on every command line, which no profile may fix."""

    def canonical(self, written: str) -> str:
        """The name behind a long option as written: ``--no_foo.bar=1`` is ``foo``.

        Dashes for underscores, no dotted part, no ``no-`` of a known switch, no alias.
        """
        name = written.removeprefix("--").partition("=")[0].replace("_", "-")
        if self.abbreviates:
            name = name.partition(".")[0]
        name = self.aliases.get(name, name)
        positive = name.removeprefix("no-")
        positive = self.aliases.get(positive, positive)
        if name.startswith("no-") and (self.abbreviates or self._knows(positive)):
            return positive
        return name

    def classify(self, written: str) -> tuple[OptionClass, str]:
        """Class of an option as written, and the known name that decided it."""
        name = self.canonical(written)
        for kind, names in (
            (OptionClass.RESERVED, self.reserved),
            (OptionClass.TYPED, self.typed.keys()),
            (OptionClass.APPROVAL, self.approval | self.approval_paths),
        ):
            if name in names:
                return kind, name
        if name in self.either:
            return OptionClass.EXTRA, name
        if name.endswith(self.reserved_endings):
            return OptionClass.RESERVED, name
        abbreviated = self._abbreviated(name)
        if abbreviated is not None:
            return abbreviated
        if name.endswith(SHAPES_BY_APPROVAL):
            return OptionClass.APPROVAL, name
        return OptionClass.EXTRA, name

    def _abbreviated(self, name: str) -> tuple[OptionClass, str] | None:
        if not self.abbreviates:
            return None
        for kind, names in (
            (OptionClass.RESERVED, self.reserved),
            (OptionClass.TYPED, self.typed.keys() | self.either.keys()),
            (OptionClass.RESERVED, self.approval | self.approval_paths),
        ):
            found = next((known for known in sorted(names) if known.startswith(name)), None)
            if found is not None:
                return kind, found
        return None

    def _knows(self, name: str) -> bool:
        return (
            name in self.reserved
            or name in self.typed
            or name in self.approval
            or name in self.approval_paths
            or name in self.either
        )

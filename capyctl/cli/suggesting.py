"""What was probably meant by a word that is no action or resource."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from shlex import quote

ELSEWHERE: Mapping[str, str] = {
    "ps": "list deployments",
    "ls": "list deployments",
    "list models": "list deployments",
    "run": "deploy model",
    "apply": "deploy model",
    "create": "deploy model",
    "serve": "start standalone",
    "rm": "delete deployment",
    "show": "inspect deployment",
    "help": "--help",
    "version": "--version",
}
"""Words that other programs have for it."""
_NEAR = 0.75


def no_such_command(prog: str, word: str, choices: Mapping[str, argparse.ArgumentParser]) -> str:
    """The refusal of ``word`` after ``prog``, with what was meant or what there is."""
    meant = _meant(prog, word, choices)
    said = f"there is no `{prog} {quote(word)}`"
    if meant is not None:
        return f"{said}: did you mean `{meant}`?"
    return f"{said}: it takes {', '.join(choices)}" if " " in prog else said


def _meant(prog: str, word: str, choices: Mapping[str, argparse.ArgumentParser]) -> str | None:
    known = ELSEWHERE.get(f"{prog} {word}".partition(" ")[2])
    if known is not None:
        return f"capyctl {known}"
    near = _nearest(word, list(choices))
    if near is not None:
        return f"{prog} {near}"
    # A resource that was left out: the word is the name of one, or a document.
    for resource in ("deployment", "host"):
        if resource in choices and _takes_a_name(choices[resource]):
            return f"{prog} {resource} {quote(word)}"
    return f"{prog} model --file {quote(word)}" if list(choices) == ["model"] else None


def _nearest(word: str, choices: Sequence[str]) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, choices, n=1, cutoff=_NEAR)), None)


def _takes_a_name(parser: argparse.ArgumentParser) -> bool:
    return any(not action.option_strings for action in parser._actions)

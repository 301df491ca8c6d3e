"""Checks of command-line options that people add: at deploy time, and again when rendered.

Pure. Every refusal is a ValueError that names the setting and the option, never its value.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs

from capyctl.domain.devices import Profile
from capyctl.engines.llama_cpp_options import LLAMA_CPP_OPTIONS
from capyctl.engines.options import OptionClass, OptionTable
from capyctl.engines.sglang_options import SGLANG_OPTIONS
from capyctl.engines.tensorfold_options import TENSORFOLD_OPTIONS
from capyctl.engines.vllm_options import VLLM_OPTIONS

EXTRA_ARGS = "engine_config.extra_args"
PROFILE_ARGS = "args"
TOKENS_MAX = 256
TOKEN_MAX_BYTES = 4096

TABLES: Mapping[str, OptionTable] = {
    table.family: table
    for table in (VLLM_OPTIONS, LLAMA_CPP_OPTIONS, SGLANG_OPTIONS, TENSORFOLD_OPTIONS)
}

SPECULATIVE_KEYS = frozenset(
    {
        "method",
        "model",
        "num_speculative_tokens",
        "draft_tensor_parallel_size",
        "prompt_lookup_max",
        "prompt_lookup_min",
        "draft_sample_method",
        "moe_backend",
    }
)


@attrs.frozen(kw_only=True)
class Option:
    """One option as written, with the values that follow it."""

    written: str
    """Without ``=value``."""
    values: tuple[str, ...]
    tokens: tuple[str, ...]


def check_extra_args(
    family: str,
    profile: Profile,
    extra_args: Sequence[str],
    *,
    accepted: bool = True,
    declared: Collection[str] = (),
) -> None:
    """Refuse a deployment's `extra_args` that the profile or the engine's classes forbid.

    ``accepted`` is the document's `accept_extra_args`; ``declared`` names the typed fields
    that the document states, for options that may be written either way.

    Raises:
        ValueError: names `engine_config.extra_args` and the option.
    """
    if not extra_args:
        return
    if not accepted:
        raise ValueError(f"{EXTRA_ARGS}: needs engine_config.accept_extra_args: true")
    if not profile.extra_args_allowed:
        raise ValueError(
            f"{EXTRA_ARGS}: profile {profile.name} denies them (security.extra_args: denied)"
        )
    table = table_of(family)
    fixed = {table.canonical(option.written) for option in split_options(table, profile.args)}
    for option in _distinct_options(table, extra_args, EXTRA_ARGS):
        _check_extra(table, profile, option, declared)
        if table.canonical(option.written) in fixed:
            raise ValueError(
                f"{EXTRA_ARGS}: {option.written} is fixed by profile {profile.name} already"
            )


def check_profile_args(family: str, args: Sequence[str]) -> None:
    """Refuse host-fixed arguments that capyctl sets itself.

    Raises:
        ValueError: names `args` and the option.
    """
    table = table_of(family)
    for option in _distinct_options(table, args, PROFILE_ARGS):
        kind, name = table.classify(option.written)
        spelled = _spelling(option.written, name, table)
        if kind is OptionClass.RESERVED or name in table.always_rendered:
            raise ValueError(f"{PROFILE_ARGS}: {spelled} is set by capyctl itself")


def check_rendered_once(family: str, argv: Sequence[str], *, ours: int) -> None:
    """Refuse a command line on which an option of the first ``ours`` tokens comes again, or one
    that is capyctl's own, wherever it was written.

    Raises:
        ValueError: names the option.
    """
    table = table_of(family)
    rendered = {table.canonical(token) for token in argv[:ours] if token.startswith("--")}
    for option in split_options(table, argv[ours:]):
        if table.classify(option.written)[0] is OptionClass.RESERVED:
            raise ValueError(f"{option.written} is set by capyctl itself")
        if table.canonical(option.written) in rendered:
            raise ValueError(f"{option.written} is on the command line twice: use its typed field")


def table_of(family: str) -> OptionTable:
    """The option classes of a family.

    Raises:
        ValueError: capyctl does not know how to check arguments of that engine.
    """
    found = TABLES.get(family)
    if found is None:
        raise ValueError(f"engine {family!r} is not one of {', '.join(sorted(TABLES))}")
    return found


def names_option(family: str, args: Sequence[str], name: str) -> bool:
    """Whether ``args`` hold the option ``name`` (no dashes) in any spelling."""
    table = table_of(family)
    return any(table.canonical(option.written) == name for option in split_options(table, args))


def split_options(table: OptionTable, args: Sequence[str]) -> Iterator[Option]:
    """Options with the values after them. Tokens before the first option are skipped."""
    at = 0
    while at < len(args):
        token = args[at]
        at += 1
        if not _is_long_option(token):
            continue
        written, equals, inline = token.partition("=")
        values = [inline] if equals else []
        start = at - 1
        room = 2 if table.canonical(written) in table.two_values else 1
        while at < len(args) and len(values) < room and not _starts_option(args[at]):
            values.append(args[at])
            at += 1
        yield Option(written=written, values=tuple(values), tokens=tuple(args[start:at]))


def _distinct_options(table: OptionTable, args: Sequence[str], where: str) -> list[Option]:
    """The options, each once and nothing else between them.

    Raises:
        ValueError: short options, values without an option, repetitions, sizes.
    """
    if len(args) > TOKENS_MAX:
        raise ValueError(f"{where}: {len(args)} tokens, at most {TOKENS_MAX} are taken")
    for token in args:
        _check_token(table, token, where)
    options = list(split_options(table, args))
    taken = sum(len(option.tokens) for option in options)
    if taken != len(args):
        raise ValueError(f"{where}: every value must follow its option, and only one may")
    seen: set[str] = set()
    for option in options:
        name = table.canonical(option.written)
        if name in seen:
            raise ValueError(f"{where}: {option.written} is given more than once")
        seen.add(name)
    return options


_NEGATIVE_NUMBER = re.compile(r"-\.?[0-9].*")
_LONG_OPTION = re.compile(r"--[A-Za-z][A-Za-z0-9_.\-]*(=.*)?", re.DOTALL)


def _check_token(table: OptionTable, token: str, where: str) -> None:
    if len(token.encode()) > TOKEN_MAX_BYTES or "\0" in token:
        raise ValueError(f"{where}: a token is longer than {TOKEN_MAX_BYTES} bytes or holds NUL")
    if not _starts_option(token):
        return
    if not _is_long_option(token):
        shown = token.partition("=")[0][:40]
        raise ValueError(f"{where}: {shown} is not a long option; write it as --name")
    if "=" in token and not table.inline_values:
        shown = token.partition("=")[0]
        raise ValueError(f"{where}: {shown}=… is not taken by {table.family}; use two tokens")


def _starts_option(token: str) -> bool:
    return token.startswith("-") and token != "-" and not _NEGATIVE_NUMBER.fullmatch(token)


def _is_long_option(token: str) -> bool:
    return _LONG_OPTION.fullmatch(token) is not None


def _spelling(written: str, known: str, table: OptionTable) -> str:
    if table.canonical(written) == known:
        return written
    return f"{written} (short for --{known})"


def _check_extra(
    table: OptionTable, profile: Profile, option: Option, declared: Collection[str]
) -> None:
    kind, name = table.classify(option.written)
    spelled = _spelling(option.written, name, table)
    if kind is OptionClass.RESERVED and table.canonical(option.written) != name:
        raise ValueError(f"{EXTRA_ARGS}: {spelled}: write options in full")
    if kind is OptionClass.RESERVED:
        raise ValueError(f"{EXTRA_ARGS}: {spelled} is set by capyctl itself")
    if kind is OptionClass.TYPED:
        field = (dict(table.typed) | dict(table.either))[name]
        raise ValueError(f"{EXTRA_ARGS}: {spelled}: use engine_config.{field} instead")
    if name in table.either and table.either[name] in declared:
        raise ValueError(
            f"{EXTRA_ARGS}: {spelled} repeats engine_config.{table.either[name]}; keep one"
        )
    if kind is OptionClass.APPROVAL:
        _check_approved(table, profile, option, name)


def _check_approved(table: OptionTable, profile: Profile, option: Option, name: str) -> None:
    approved = {
        table.canonical(given if given.startswith("--") else f"--{given}")
        for given in profile.approved_options
    }
    if name not in approved:
        raise ValueError(
            f"{EXTRA_ARGS}: {option.written} needs profile {profile.name} to name it in "
            "security.approved_options"
        )
    if "." in option.written:
        raise ValueError(f"{EXTRA_ARGS}: {option.written}: give its value as one JSON text")
    if name == "speculative-config":
        _check_speculative(profile, option)
        return
    is_path = name in table.approval_paths or name.endswith(("-path", "-dir"))
    for value in option.values:
        if is_path:
            _check_paths(table, profile, option.written, value)
        elif value.startswith(("/", "./", "../", "~")):
            _check_inside(profile, option.written, value)


def _check_paths(table: OptionTable, profile: Profile, written: str, value: str) -> None:
    parts = value.split(",") if table.family == "llamacpp" else [value]
    for part in parts:
        _check_inside(profile, written, _without_scale(written, part))


def _check_inside(profile: Profile, written: str, path: str) -> None:
    """Lexically; links are looked at when the engine is launched."""
    if not path.startswith("/"):
        raise ValueError(f"{EXTRA_ARGS}: {written} needs an absolute path")
    plain = os.path.normpath(path)
    if ".." in path.split("/") or not any(
        plain == root or plain.startswith(root.rstrip("/") + "/")
        for root in map(os.path.normpath, profile.approved_paths)
    ):
        raise ValueError(
            f"{EXTRA_ARGS}: {written} names a path outside the profile's security.approved_paths"
        )


def _check_speculative(profile: Profile, option: Option) -> None:
    try:
        value = json.loads(option.values[0]) if option.values else None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{EXTRA_ARGS}: {option.written} needs one JSON object")
    unknown = sorted(set(value) - SPECULATIVE_KEYS)
    if unknown:
        raise ValueError(
            f"{EXTRA_ARGS}: {option.written} may not hold {', '.join(unknown)}; "
            f"it takes {', '.join(sorted(SPECULATIVE_KEYS))}"
        )
    for key, held in value.items():
        if not isinstance(held, str | int | float | bool):
            raise ValueError(f"{EXTRA_ARGS}: {option.written}: {key} must be a plain value")
    if "model" in value:
        _check_inside(profile, f"{option.written} model", str(value["model"]))


def paths_in(family: str, args: Sequence[str]) -> list[str]:
    """Absolute paths that approval options in ``args`` name, for the check through links."""
    table = table_of(family)
    found: list[str] = []
    for option in split_options(table, args):
        kind, name = table.classify(option.written)
        if kind is not OptionClass.APPROVAL:
            continue
        if name == "speculative-config" and option.values:
            model = json.loads(option.values[0]).get("model")
            found += [model] if isinstance(model, str) else []
            continue
        for value in option.values:
            parts = value.split(",") if table.family == "llamacpp" else [value]
            found += [_without_scale(option.written, p) for p in parts if p.startswith("/")]
    return found


def _without_scale(written: str, part: str) -> str:
    return part.rpartition(":")[0] if written.endswith("-scaled") and ":" in part else part


def check_real_paths(paths: Sequence[str], approved: Sequence[str]) -> None:
    """Refuse paths that leave the approved ones through symbolic links. Touches the disk.

    Raises:
        ValueError: names `engine_config.extra_args`.
    """
    roots = [os.path.realpath(root) for root in approved]
    for path in paths:
        real = os.path.realpath(path)
        if not any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots):
            raise ValueError(
                f"{EXTRA_ARGS}: a path leaves the profile's security.approved_paths through a link"
            )

"""Command lines of Python engines, which run capyctl's own entry by their interpreter."""

from __future__ import annotations

import os.path
from collections.abc import Sequence

from capyctl.domain.launches import LaunchOrder
from capyctl.engines.arguments import check_rendered_once
from capyctl.engines.surroundings import Surroundings

ISOLATED = "-I"
"""No PYTHON* variables, no user site, nothing of the current folder on the search path."""


def entry_command(
    order: LaunchOrder,
    surroundings: Surroundings,
    entry: str,
    *,
    ours: Sequence[str],
    verb: Sequence[str] = (),
) -> tuple[str, ...]:
    """``<env>/bin/python3 -I <runtime>/<entry> <count> <ours> <profile's args> <extra args>``.

    ``count`` tells the entry how many of the tokens are capyctl's own. An order that is
    `direct` runs its executable with ``verb`` instead.

    Raises:
        ValueError: an option comes twice, or the profile has leading arguments, which an
            entry cannot pass on.
    """
    engine = order.engine
    if engine.direct:
        head = [*engine.executable, *verb]
    elif len(engine.executable) != 1:
        raise ValueError("executable: an engine with leading arguments cannot be run here")
    else:
        python = interpreter_of(order)
        path = os.path.join(surroundings.runtime_dir, entry)
        head = [python, ISOLATED, path, str(len(ours))]
    argv = (*head, *ours, *engine.profile_args, *engine.extra_args)
    check_rendered_once(engine.family, argv, ours=len(head) + len(ours))
    return argv


def interpreter_of(order: LaunchOrder) -> str:
    """The interpreter of the environment whose `bin` holds the engine's program."""
    return os.path.join(os.path.dirname(order.engine.executable[0]), "python3")

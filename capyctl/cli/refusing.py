"""Refusals of documents and machines, in the command's own words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from capyctl.cli.failure import CommandFailed


@contextlib.contextmanager
def documents_refused() -> Iterator[None]:
    """Raises CommandFailed for a document that is refused in the block."""
    from capyctl.config.problems import InvalidDocument
    from capyctl.domain.errors import Refused

    try:
        yield
    except InvalidDocument as problem:
        raise CommandFailed(
            problem.problem.code, str(problem), details={"path": problem.problem.path}
        ) from problem
    except Refused as refused:
        raise CommandFailed(refused.code, refused.message, details=refused.details) from refused

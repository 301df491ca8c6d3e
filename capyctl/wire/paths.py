"""What a path may name: a deployment or host by id or name, an instance by index.

Segments come as they were sent, percent-escapes and all.
"""

from __future__ import annotations

import re

from capyctl.domain.errors import Refused
from capyctl.domain.ids import INDEX_MAX, DeploymentId
from capyctl.wire.query import percent_decoded

NAME_BYTES_MAX = 256
ULID_PATTERN = "[0-7][0-9A-HJKMNP-TV-Z]{25}"
_ULID = re.compile(ULID_PATTERN)
_INDEX = re.compile(r"0|[1-9][0-9]?")
_LOG_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def read_deployment_id(segment: str) -> DeploymentId:
    """A ULID in canonical upper case.

    Raises:
        Refused: ``invalid_request`` for anything else: a name, lower case, an escape.
    """
    if _ULID.fullmatch(segment) is None:
        raise Refused(
            "invalid_request",
            "The path must name the deployment by its id, a ULID of 26 upper-case characters",
        )
    return DeploymentId(segment)


def read_index(segment: str) -> int:
    """An instance's index, decimal and without a leading zero. Raises Refused."""
    if _INDEX.fullmatch(segment) is None or int(segment) > INDEX_MAX:
        raise Refused(
            "invalid_request", f"The instance index must be a number from 0 to {INDEX_MAX}"
        )
    return int(segment)


def read_id_or_name(segment: str, *, what: str = "deployment") -> str:
    """The id or name of ``what``, percent-decoded. Raises Refused(``invalid_request``)."""
    try:
        name = percent_decoded(segment)
    except ValueError as problem:
        raise Refused("invalid_request", "The path holds a broken percent-escape") from problem
    if not name.strip() or len(name.encode()) > NAME_BYTES_MAX or _CONTROL.search(name):
        raise Refused(
            "invalid_request",
            f"A {what}'s name has 1 to {NAME_BYTES_MAX} bytes, without control characters",
        )
    return name


def read_log_id(segment: str) -> DeploymentId:
    """The id in an engine-log path; whether it exists is another question. Raises Refused."""
    if _LOG_ID.fullmatch(segment) is None:
        raise Refused("invalid_request", "The path must name the deployment by its id")
    return DeploymentId(segment)

"""Answers as the API gives them, and what every handler asks of its request."""

from __future__ import annotations

import trio
from quart import Request
from quart_trio.wrappers import TrioResponse
from werkzeug.exceptions import RequestEntityTooLarge

from capyctl.api.limits import Limits
from capyctl.domain.errors import Refused
from capyctl.wire.errors import error_json
from capyctl.wire.query import read_query


def json_answer(body: bytes | str, status: int = 200) -> TrioResponse:
    """One JSON body, complete, with its length."""
    return TrioResponse(body, status=status, content_type="application/json")


def refusal(refused: Refused) -> TrioResponse:
    """The error envelope under the status of its code."""
    return json_answer(error_json(refused), refused.kind.http_status)


def check_no_query(request: Request) -> None:
    """Raises Refused(``invalid_request``) when there is one."""
    read_query(request.scope["query_string"], ())


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body.

    Raises:
        Refused: ``deadline_exceeded`` when it is slow, ``body_too_large`` when it is large.
    """
    try:
        with trio.fail_after(limits.body_s_max):
            return await request.get_data(cache=True, as_text=False, parse_form_data=False)
    except trio.TooSlowError as problem:
        raise Refused(
            "deadline_exceeded",
            f"The body did not arrive within {limits.body_s_max:g} seconds; nothing was changed",
        ) from problem
    except RequestEntityTooLarge as problem:
        raise Refused(
            "body_too_large", f"The body has more than {limits.body_bytes_max} bytes"
        ) from problem

"""The error envelope and the last frame of a stream, byte for byte."""

from __future__ import annotations

import pytest

from capyctl.domain.errors import Refused
from capyctl.wire.errors import error_json
from capyctl.wire.frames import last_frame


def test_the_envelope_is_as_printed():
    path = {"path": "model.hf"}
    refused = Refused("invalid_config", "Invalid: `Qwen/Qwen3-4B` is not pinned", path)

    assert error_json(refused) == (
        b'{"api_version":"1","error":{"code":"invalid_config","details":{"path":"model.hf"},'
        b'"message":"Invalid: `Qwen/Qwen3-4B` is not pinned","operation_id":null,'
        b'"retryable":false}}'
    )


@pytest.mark.parametrize(
    ("code", "resnapshot", "retryable"),
    [
        ("cursor_expired", "true", "false"),
        ("queue_full", "false", "true"),
        ("internal", "false", "false"),
    ],
)
def test_a_last_frame_has_no_id(code, resnapshot, retryable):
    assert last_frame(Refused(code, "m")).decode() == (
        "event: management_stream_error\n"
        f'data: {{"api_version":"1","error":{{"code":"{code}",'
        f'"resnapshot_required":{resnapshot},"retryable":{retryable}}}}}\n\n'
    )

"""What a path may name."""

from __future__ import annotations

import pytest

from capyctl.domain.errors import Refused
from capyctl.wire.paths import read_deployment_id, read_id_or_name, read_index, read_log_id

ULID = "01M5E0MPXN61STKHGZ6BTEFVM3"


def test_what_is_well_formed_is_read():
    assert read_deployment_id(ULID) == ULID
    assert [read_index("0"), read_index("63")] == [0, 63]
    assert read_id_or_name("caf%C3%A9%2Fx") == "café/x"
    assert read_log_id("a.b_C-9") == "a.b_C-9"


@pytest.mark.parametrize(
    ("read", "segment"),
    [
        (read_deployment_id, ULID.lower()),
        (read_deployment_id, ULID[:-1]),
        (read_deployment_id, f"{ULID}\n"),
        (read_deployment_id, "8" + ULID[1:]),
        (read_deployment_id, ULID[:-1] + "U"),
        (read_deployment_id, "my-model"),
        (read_index, "00"),
        (read_index, "01"),
        (read_index, "64"),
        (read_index, "100"),
        (read_index, ""),
        (read_index, "٣"),
        (read_index, "1\n"),
        (read_id_or_name, "%20"),
        (read_id_or_name, "a%00"),
        (read_id_or_name, "é" * 129),
        (read_id_or_name, "%e9"),
        (read_log_id, "a%20b"),
        (read_log_id, "x" * 129),
    ],
)
def test_what_is_not_is_refused(read, segment):
    with pytest.raises(Refused) as problem:
        read(segment)

    assert problem.value.code == "invalid_request"

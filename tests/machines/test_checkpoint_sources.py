"""What news of a download does: to the record, to starts, and to requests."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.checkpoints import (
    CheckpointRecord,
    DigestState,
    RemoteSource,
    SourceKind,
    SourceRecord,
    SourceState,
)
from capyctl.domain.errors import Refused
from capyctl.domain.units import GIB
from capyctl.machines.checkpoint import measured, sourced, unmeasured
from capyctl.machines.deployment import refusal
from capyctl.machines.start_action import check_startable
from tests.machines.making import FACTS, RESOLVED, SPEC, picture

SOURCE = RemoteSource(kind=SourceKind.HTTP, key="sources/http/ab", url_ref="secret://x")
COMING = SourceRecord(
    host="host", state=SourceState.DOWNLOADING, bytes_done=3 * GIB, bytes_total=15 * GIB
)
WAITING = attrs.evolve(COMING, state=SourceState.FAILED, reason="unreachable: it is away")
FAILED = attrs.evolve(
    COMING, state=SourceState.FAILED, reason="unauthorized: a token is needed", terminal=True
)
VERIFIED = attrs.evolve(COMING, state=SourceState.VERIFIED, bytes_done=15 * GIB)


def coming(*news):
    deployment = picture(
        spec=attrs.evolve(SPEC, source=SOURCE), checkpoint=CheckpointRecord(), resolved=None
    ).deployment
    for record in news:
        deployment = sourced(deployment, record)
    return deployment


def start_refusal(deployment) -> Refused:
    with pytest.raises(Refused) as refused:
        check_startable(deployment)
    return refused.value


def test_before_any_news_the_files_are_pending():
    assert start_refusal(coming()).code == "model_source_pending"


def test_a_start_is_told_how_far_they_are():
    refused = start_refusal(coming(COMING))

    assert refused.code == "model_source_pending"
    assert "3.0 GiB of 15.0 GiB" in refused.message


def test_a_failure_that_may_pass_is_pending_with_its_reason():
    refused = start_refusal(coming(COMING, WAITING))

    assert refused.code == "model_source_pending"
    assert "unreachable: it is away" in refused.message
    assert coming(COMING, WAITING).checkpoint.diagnostic is None


def test_a_failure_for_good_fails_the_start_and_says_why_nothing_is_measured():
    deployment = coming(FAILED)
    refused = start_refusal(deployment)

    assert refused.code == "model_source_failed"
    assert "unauthorized: a token is needed" in refused.message
    assert deployment.checkpoint.diagnostic == "unauthorized"
    assert deployment.checkpoint.detail == "a token is needed"


@pytest.mark.parametrize(
    ("reason", "diagnostic"),
    [
        ("too_large: x", "too_large"),
        ("checksum_mismatch: x", "not_materializable"),
        ("not_found: x", "not_materializable"),
    ],
)
def test_every_failure_is_one_of_the_diagnostics(reason, diagnostic):
    deployment = coming(attrs.evolve(FAILED, reason=reason))

    assert deployment.checkpoint.diagnostic == diagnostic


def test_files_that_come_after_all_take_the_diagnostic_away():
    assert coming(FAILED, COMING).checkpoint.diagnostic is None


def test_verified_files_are_measured_next():
    assert start_refusal(coming(VERIFIED)).code == "checkpoint_digest_pending"


def test_a_measurement_keeps_the_record_of_the_download():
    deployment = measured(coming(VERIFIED), FACTS, lambda _: RESOLVED)

    assert deployment.checkpoint.source == VERIFIED
    assert deployment.checkpoint.state is DigestState.RECORDED
    check_startable(deployment)


@pytest.mark.parametrize(
    ("news", "code"), [((), None), ((COMING,), None), ((WAITING,), None), ((FAILED,), "conflict")]
)
def test_requests_wait_for_files_that_may_come(news, code):
    found = refusal(attrs.evolve(picture(), deployment=coming(*news)))

    assert (found and found.code) == code


@pytest.mark.parametrize(
    ("diagnostic", "code"),
    [
        ("invalid_root", "conflict"),
        ("unsafe_file", "conflict"),
        ("too_large", "conflict"),
        ("changed", None),
        ("io_error", None),
    ],
)
def test_requests_wait_for_a_measurement_unless_only_people_can_mend_it(diagnostic, code):
    fresh = picture(checkpoint=CheckpointRecord(), resolved=None).deployment
    deployment = unmeasured(fresh, diagnostic, "/models/a: no such directory")

    found = refusal(attrs.evolve(picture(), deployment=deployment))

    assert (found and found.code) == code
    assert found is None or "/models/a: no such directory" in found.message

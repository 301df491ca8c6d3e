"""Scripts rely on the exit status of each code."""

import pytest

from capyctl.cli.exit_codes import MEANINGS, STATUS, exit_status
from capyctl.domain.errors import MANAGEMENT_ERRORS
from tests.cli.fake_management import refusal


@pytest.mark.parametrize(
    ("code", "status", "exits"),
    [
        ("unauthenticated", 401, 3),
        ("invalid_request", 400, 2),
        ("invalid_config", 400, 2),
        ("not_found", 404, 2),
        ("revision_conflict", 409, 2),
        ("lifecycle_conflict", 409, 2),
        ("checkpoint_mismatch", 409, 2),
        ("checkpoint_unusable", 409, 2),
        ("delete_requires_cleanup", 409, 2),
        ("host_policy_denied", 403, 2),
        ("body_too_large", 413, 2),
        ("capacity_blocked", 503, 4),
        ("startup_requires_empty_host", 409, 4),
        ("unsupported_capability", 503, 5),
        ("group_shape_unsupported", 501, 5),
        ("reconciliation_required", 503, 6),
        ("internal", 500, 13),
        ("host_ineligible", 503, 15),
        ("profile_not_published", 409, 24),
        ("still_stopping", 503, 25),
        ("checkpoint_digest_pending", 503, 2),
        ("switch_failed", 503, 2),
    ],
)
def test_a_refused_change_ends_with_the_status_of_its_code(management, bench, code, status, exits):
    management.answers = [refusal(code, status, message="as it is")]

    ran = bench.run("stop", "deployment", "my-model")

    shown = "unauthorized" if code == "unauthenticated" else code
    assert ran.status == exits
    assert ran.errors == [f"error [{shown}]: as it is"]
    assert ran.out == ""


@pytest.mark.parametrize("code", ["queue_full", "deadline_exceeded"])
def test_a_change_that_stays_too_slow_ends_after_its_attempts(management, bench, code):
    management.answers = [refusal(code, 504, retryable=True)] * 9

    ran = bench.run("stop", "deployment", "my-model")

    assert ran.status == {"queue_full": 2, "deadline_exceeded": 13}[code]
    assert len(management.changes) == 4


def test_what_follows_a_colon_does_not_matter():
    assert exit_status("group_shape_unsupported:vllm") == 5
    assert exit_status("engine_env_reserved:HOME") == 2


def test_every_status_has_its_meaning():
    assert set(STATUS.values()) <= MEANINGS.keys()
    assert all(exit_status(code) in MEANINGS for code in MANAGEMENT_ERRORS)


def test_errors_are_json_where_json_is_asked_for(management, bench):
    management.answers = [refusal("invalid_config", 400, details={"path": "model.hf"})]

    ran = bench.run("stop", "deployment", "my-model", "--json")

    assert ran.errors == [
        '{"code":"invalid_config","message":"because","details":{"path":"model.hf"}}'
    ]

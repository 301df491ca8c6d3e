"""What a measurement of the files makes of a deployment."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.checkpoints import CheckpointRecord, DigestState
from capyctl.domain.errors import Refused
from capyctl.machines.checkpoint import measured, unmeasured
from tests.machines import making

FRESH = making.deployment(checkpoint=CheckpointRecord(), resolved=None)


def fits(_facts):
    return making.RESOLVED


def fits_not(_facts):
    raise Refused("checkpoint_unusable", "the weights need 90.0 GiB")


def test_measured_and_fitting():
    after = measured(FRESH, making.FACTS, fits)

    assert after.checkpoint.state is DigestState.RECORDED
    assert after.resolved == making.RESOLVED


@pytest.mark.parametrize(
    ("expected", "state"),
    [(making.FACTS.digest, DigestState.RECORDED), ("sha256:1", DigestState.MISMATCH)],
)
def test_an_expected_digest_must_be_met(expected, state):
    spec = attrs.evolve(making.SPEC, expected_digest=expected)

    after = measured(attrs.evolve(FRESH, spec=spec), making.FACTS, fits)

    assert after.checkpoint.state is state
    assert (after.resolved is None) is (state is DigestState.MISMATCH)
    if state is DigestState.MISMATCH:
        assert making.FACTS.digest in after.checkpoint.detail
        assert expected in after.checkpoint.detail


def test_files_that_fit_no_machine_are_unusable_and_say_why():
    after = measured(FRESH, making.FACTS, fits_not)

    assert after.checkpoint.state is DigestState.UNUSABLE
    assert after.checkpoint.detail == "the weights need 90.0 GiB"
    assert after.resolved is None


def test_unmeasured_is_still_pending_and_says_why():
    after = unmeasured(FRESH, "io_error", "the disk did not answer")

    assert after.checkpoint.state is DigestState.PENDING
    assert after.checkpoint.diagnostic == "io_error"


def test_a_late_failure_does_not_undo_a_measurement():
    done = measured(FRESH, making.FACTS, fits)

    assert unmeasured(done, "io_error", "x") == done

"""What news of a model's files, fetched or measured, does to its deployment."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from capyctl.domain.checkpoints import (
    CheckpointFacts,
    CheckpointRecord,
    DigestState,
    SourceRecord,
    SourceState,
)
from capyctl.domain.errors import Refused
from capyctl.domain.specs import ResolvedSpec
from capyctl.domain.units import gib
from capyctl.machines.deployment import Deployment, source_failure


def measured(
    deployment: Deployment,
    facts: CheckpointFacts,
    resolve: Callable[[CheckpointFacts], ResolvedSpec],
) -> Deployment:
    """1. Another digest than declared: mismatch. 2. No memory plan: unusable. 3. Recorded."""
    expected = deployment.checkpoint.expected or deployment.spec.expected_digest
    record = CheckpointRecord(
        state=DigestState.RECORDED,
        expected=expected,
        facts=facts,
        source=deployment.checkpoint.source,
    )
    if expected is not None and facts.digest != expected:
        stated = expected == deployment.spec.expected_digest
        by = "the document expects" if stated else "measured before was"
        detail = f"the files' digest is {facts.digest}, {by} {expected}"
        record = attrs.evolve(
            record, state=DigestState.MISMATCH, diagnostic="checkpoint_mismatch", detail=detail
        )
        return attrs.evolve(deployment, checkpoint=record, resolved=None)
    try:
        resolved = resolve(facts)
    except Refused as refused:
        record = attrs.evolve(
            record,
            state=DigestState.UNUSABLE,
            diagnostic="checkpoint_unusable",
            detail=refused.message,
        )
        return attrs.evolve(deployment, checkpoint=record, resolved=None)
    return attrs.evolve(deployment, checkpoint=record, resolved=resolved)


def unmeasured(deployment: Deployment, diagnostic: str, detail: str) -> Deployment:
    """Still pending, and why; it is tried again."""
    if deployment.checkpoint.state is not DigestState.PENDING:
        return deployment
    record = attrs.evolve(deployment.checkpoint, diagnostic=diagnostic, detail=detail)
    return attrs.evolve(deployment, checkpoint=record)


DIAGNOSTICS = {"unauthorized": "unauthorized", "too_large": "too_large"}
"""What a failed download is called where a measurement is spoken of; others cannot be had."""


def sourced(deployment: Deployment, record: SourceRecord) -> Deployment:
    """News of the download. One that failed for good also says why nothing is measured."""
    checkpoint = attrs.evolve(deployment.checkpoint, source=record)
    if checkpoint.state is DigestState.PENDING:
        failed = record.terminal and record.reason is not None
        token, _, detail = (record.reason or "").partition(": ")
        checkpoint = attrs.evolve(
            checkpoint,
            diagnostic=DIAGNOSTICS.get(token, "not_materializable") if failed else None,
            detail=detail if failed else None,
        )
    return attrs.evolve(deployment, checkpoint=checkpoint)


def source_of(deployment: Deployment, host: str) -> SourceRecord | None:
    """How far the download is; None for files that are on the machine."""
    if deployment.spec.source is None:
        return None
    return deployment.checkpoint.source or SourceRecord(host=host)


def check_fetched(deployment: Deployment) -> None:
    """Whether a start may count on the files. Raises Refused while they are not here."""
    record = source_of(deployment, host="")
    if record is None or record.state is SourceState.VERIFIED:
        return
    failure, name = source_failure(deployment), deployment.spec.name
    if failure is not None:
        raise Refused("model_source_failed", f"The files of `{name}` cannot be fetched: {failure}")
    so_far = gib(record.bytes_done)
    of = f" of {gib(record.bytes_total)}" if record.bytes_total else ""
    why = f" ({record.reason}; it is tried again)" if record.reason else ""
    raise Refused(
        "model_source_pending",
        f"The files of `{name}` are still being fetched: {so_far}{of}{why}",
    )

"""What a measurement of a model's files does to its deployment."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from capyctl.domain.checkpoints import CheckpointFacts, CheckpointRecord, DigestState
from capyctl.domain.errors import Refused
from capyctl.domain.specs import ResolvedSpec
from capyctl.machines.deployment import Deployment


def measured(
    deployment: Deployment,
    facts: CheckpointFacts,
    resolve: Callable[[CheckpointFacts], ResolvedSpec],
) -> Deployment:
    """1. Another digest than declared: mismatch. 2. No memory plan: unusable. 3. Recorded."""
    expected = deployment.spec.expected_digest
    record = CheckpointRecord(state=DigestState.RECORDED, expected=expected, facts=facts)
    if expected is not None and facts.digest != expected:
        detail = f"the files' digest is {facts.digest}, the document expects {expected}"
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

"""What news of a model's files on one of several machines does to its deployment.

The first measurement is what all others are held against. A machine whose files differ, or on which
the figures do not work out, is left out; the deployment can start once one machine can run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

import attrs

from capyctl.domain.checkpoints import (
    CheckpointFacts,
    CheckpointRecord,
    DigestState,
    HostFiles,
    SourceRecord,
    SourceState,
)
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import HostRecord, HostState
from capyctl.domain.ids import HostId
from capyctl.domain.specs import HostRefusal, ResolvedSpec
from capyctl.machines.checkpoint import DIAGNOSTICS
from capyctl.machines.deployment import Deployment
from capyctl.machines.fitting import fit_on, is_selected, named_hosts, with_fit

Fit = Callable[[CheckpointFacts], ResolvedSpec]
UNUSABLE = "checkpoint_unusable"
REVOKED = "revoked"
_STAYING = frozenset(
    {"invalid_root", "unsafe_file", "too_large", "unauthorized", "not_materializable"}
)
"""Why files are not measured, where waiting alone does not help."""
_OUTSIDE = frozenset({"profile_not_published", "host_policy_denied", "host_ineligible"})
"""Refusals that are about the machine, not about the files."""


def hosts_looked_at(
    deployment: Deployment,
    hosts: Mapping[HostId, HostRecord],
    fit: Callable[[HostId], Fit],
    *,
    changed: Set[HostId] | None = None,
) -> Deployment:
    """The deployment as the machines are now: those that may run it have their files measured.

    1. One that may not run it (any more), by name or labels, is left out.
    2. One that may is to be measured.
    3. One that was measured is fitted again where it could not be, or its cards are others. Else
    it keeps the engine that it was accepted with.

    ``changed``: no other machine is another one than when it was looked at last.
    """
    scope = hosts.keys() if changed is None else changed & hosts.keys()
    known = {r.id: r for r in named_hosts(deployment.spec, (hosts[host] for host in scope))}
    after = deployment
    for host in sorted(scope):
        record = known.get(host)
        if record is None:
            after = _lost(after, hosts[host])
        elif not is_selected(deployment.spec, record):
            after = _refused(_without(after, host), _not_selected(record))
        else:
            after = _allowed(after, record, fit)
    return deployment if after == deployment else summed(after)


def _allowed(
    deployment: Deployment, record: HostRecord, fit: Callable[[HostId], Fit]
) -> Deployment:
    mine = _of(deployment.checkpoint, record.id)
    if mine is None:
        return _put(_refused(deployment, None, record.id), HostFiles(host=record.id))
    if mine.digest is None or not _to_fit_again(fit_on(deployment, record.id), record):
        return deployment
    return _fitted(deployment, record.id, record.name, fit(record.id))


def _lost(deployment: Deployment, record: HostRecord) -> Deployment:
    """Left out. That a revoked machine could have run it stays on record."""
    known = any(r.host == record.id and r.diagnostic == REVOKED for r in deployment.refused)
    could_run = known or fit_on(deployment, record.id) is not None
    after = _without(deployment, record.id)
    if record.state is not HostState.REVOKED or not could_run:
        return after
    detail = f"{record.name}: revoked"
    return _refused(after, HostRefusal(host=record.id, diagnostic=REVOKED, detail=detail))


def why_no_machine(deployment: Deployment) -> str | None:
    """Machine by machine, where one that could run it was revoked and no other one will; else None.

    Files that differ are not meant: they may be restored, and are looked at again.
    """
    record = deployment.checkpoint
    gone = [r.detail for r in deployment.refused if r.diagnostic == REVOKED]
    coming = any(f.digest is None and f.diagnostic not in _STAYING for f in record.hosts)
    if not gone or coming or record.state in (DigestState.RECORDED, DigestState.MISMATCH):
        return None
    return "; ".join([*gone, *(f.detail for f in record.hosts if f.detail)])


def _without(deployment: Deployment, host: HostId) -> Deployment:
    if fit_on(deployment, host) is not None:
        deployment = with_fit(deployment, host, None)
    if _of(deployment.checkpoint, host) is not None:
        rest = [f for f in deployment.checkpoint.hosts if f.host != host]
        deployment = _with_files(deployment, rest)
    return _refused(deployment, None, host)


def _refused(
    deployment: Deployment, refusal: HostRefusal | None, host: HostId | None = None
) -> Deployment:
    """With this refusal, in place of what was said of its host."""
    about = host if refusal is None else refusal.host
    others = tuple(r for r in deployment.refused if r.host != about)
    after = others if refusal is None else (*others, refusal)
    return deployment if after == deployment.refused else attrs.evolve(deployment, refused=after)


def _not_selected(record: HostRecord) -> HostRefusal:
    return HostRefusal(
        host=record.id,
        diagnostic="selector_mismatch",
        detail=f"{record.name}: its labels do not match placement.selector",
    )


def _to_fit_again(fit: ResolvedSpec | None, record: HostRecord) -> bool:
    if fit is None:
        return True
    assert record.publication is not None
    cards = {gpu.id: gpu.uuid for gpu in record.publication.shape.gpus}
    published = {profile.name for profile in record.publication.profiles}
    same_cards = all(c.gpu is None or cards.get(c.gpu) == c.gpu_uuid for c in fit.candidates)
    return not same_cards or fit.engine.profile not in published


def to_measure(deployment: Deployment) -> tuple[HostId, ...]:
    """Machines whose files were not measured yet, in this revision."""
    return tuple(HostId(f.host) for f in deployment.checkpoint.hosts if f.digest is None)


def measured_on(
    deployment: Deployment, host: HostId, name: str, facts: CheckpointFacts, fit: Fit
) -> Deployment:
    """1. Another digest than the others: left out. 2. The first: held on record. 3. Fitted."""
    record = deployment.checkpoint
    mine = _of(record, host)
    if mine is None:
        return deployment
    expected = record.expected or deployment.spec.expected_digest
    mine = attrs.evolve(mine, digest=facts.digest, diagnostic=None, detail=None)
    differs = _difference(record.facts, facts, expected)
    if differs is not None:
        mine = attrs.evolve(
            mine,
            state=DigestState.MISMATCH,
            diagnostic="checkpoint_mismatch",
            detail=f"on {name} {differs}",
        )
        return summed(with_fit(_put(deployment, mine), host, None))
    mine = attrs.evolve(mine, state=DigestState.RECORDED)
    after = _put(deployment, mine)
    if record.facts is None:
        kept = attrs.evolve(after.checkpoint, facts=facts, host=host)
        after = attrs.evolve(after, checkpoint=kept)
    return summed(_fitted(after, host, name, fit))


def _difference(
    known: CheckpointFacts | None, found: CheckpointFacts, expected: str | None
) -> str | None:
    if expected is not None and found.digest != expected:
        return f"the files' digest is {found.digest}, the document expects {expected}"
    if known is None:
        return None
    if found.digest != known.digest:
        return f"the files' digest is {found.digest}, other machines have {known.digest}"
    mine, theirs = found.draft, known.draft
    if mine is not None and theirs is not None and mine.digest != theirs.digest:
        return f"the draft's digest is {mine.digest}, other machines have {theirs.digest}"
    return None


def _fitted(deployment: Deployment, host: HostId, name: str, fit: Fit) -> Deployment:
    facts = deployment.checkpoint.facts
    mine = _of(deployment.checkpoint, host)
    if facts is None or mine is None or mine.digest != facts.digest:
        return deployment
    try:
        found = fit(facts)
    except Refused as refused:
        outside = refused.code in _OUTSIDE
        token = refused.code if outside else UNUSABLE
        detail = f"{name}: {refused.message}"
        refusal = HostRefusal(host=host, diagnostic=token, detail=detail)
        state = DigestState.RECORDED if outside else DigestState.UNUSABLE
        mine = attrs.evolve(mine, state=state, diagnostic=token, detail=detail)
        return with_fit(_refused(_put(deployment, mine), refusal), host, None)
    mine = attrs.evolve(mine, state=DigestState.RECORDED, diagnostic=None, detail=None)
    return with_fit(_refused(_put(deployment, mine), None, host), host, found)


def unmeasured_on(deployment: Deployment, host: HostId, diagnostic: str, detail: str) -> Deployment:
    """Still pending there, and why; it is tried again."""
    mine = _of(deployment.checkpoint, host)
    if mine is None or mine.digest is not None:
        return deployment
    return summed(_put(deployment, attrs.evolve(mine, diagnostic=diagnostic, detail=detail)))


def sourced_on(deployment: Deployment, record: SourceRecord) -> Deployment:
    """News of the download to one machine."""
    mine = _of(deployment.checkpoint, HostId(record.host))
    if mine is None:
        return deployment
    mine = attrs.evolve(mine, source=record)
    if mine.digest is None:
        failed = record.terminal and record.reason is not None
        token, _, detail = (record.reason or "").partition(": ")
        mine = attrs.evolve(
            mine,
            diagnostic=DIAGNOSTICS.get(token, "not_materializable") if failed else None,
            detail=detail if failed else None,
        )
    return summed(_put(deployment, mine))


def changed_on(deployment: Deployment, host: HostId, detail: str) -> Deployment:
    """A launch or wake found other files than were measured there: nothing more starts on them."""
    mine = _of(deployment.checkpoint, host)
    if mine is None or mine.state is not DigestState.RECORDED:
        return deployment
    mine = attrs.evolve(
        mine, state=DigestState.MISMATCH, diagnostic="checkpoint_mismatch", detail=detail
    )
    return summed(with_fit(_put(deployment, mine), host, None))


def looked_at_again(deployment: Deployment) -> Deployment:
    """Files that did not match may have been restored: they are to be measured anew."""
    anew = [
        HostFiles(host=f.host, source=f.source) if f.state is DigestState.MISMATCH else f
        for f in deployment.checkpoint.hosts
    ]
    return summed(_with_files(deployment, anew))


# -- the sum ---------------------------------------------------------------------------------


def summed(deployment: Deployment) -> Deployment:
    """What the machines come to together.

    1. One can run it: recorded. 2. One is still to be measured: pending. 3. None can: unusable,
    or a mismatch where all of them differ.
    """
    record = deployment.checkpoint
    files = record.hosts
    state, diagnostic, detail = DigestState.PENDING, None, None
    if deployment.resolved is not None:
        state = DigestState.RECORDED
    elif not files or any(f.digest is None for f in files):
        first = next((f for f in files if f.digest is None and f.diagnostic is not None), None)
        if first is not None:
            diagnostic, detail = first.diagnostic, first.detail
    else:
        differ = all(f.state is DigestState.MISMATCH for f in files)
        state = DigestState.MISMATCH if differ else DigestState.UNUSABLE
        diagnostic = "checkpoint_mismatch" if differ else UNUSABLE
        detail = "; ".join(f.detail for f in files if f.detail) or None
    return attrs.evolve(
        deployment,
        checkpoint=attrs.evolve(
            record, state=state, diagnostic=diagnostic, detail=detail, source=_source(files)
        ),
    )


def _source(files: Iterable[HostFiles]) -> SourceRecord | None:
    """The download that a start waits for: verified, else coming, else the one that failed."""
    found = [f.source for f in files if f.source is not None]
    return max(found, key=_promise, default=None)


def _promise(record: SourceRecord) -> tuple[int, int, str]:
    order = {SourceState.VERIFIED: 3, SourceState.DOWNLOADING: 2, SourceState.PENDING: 1}
    rank = order.get(record.state, 0 if record.terminal else 1)
    return (rank, record.bytes_done, record.host)


def _of(record: CheckpointRecord, host: HostId) -> HostFiles | None:
    return next((f for f in record.hosts if f.host == host), None)


def _put(deployment: Deployment, mine: HostFiles) -> Deployment:
    others = [f for f in deployment.checkpoint.hosts if f.host != mine.host]
    return _with_files(deployment, (*others, mine))


def _with_files(deployment: Deployment, files: Iterable[HostFiles]) -> Deployment:
    ordered = tuple(sorted(files, key=lambda f: f.host))
    return attrs.evolve(deployment, checkpoint=attrs.evolve(deployment.checkpoint, hosts=ordered))

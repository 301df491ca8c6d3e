"""What a deployment takes over from its instances: figures, and news of its files."""

from __future__ import annotations

import attrs

from capyctl.domain.checkpoints import DigestState
from capyctl.domain.ids import HostId
from capyctl.domain.measured import merged
from capyctl.machines.deployment import Deployment, Picture
from capyctl.machines.host_files import changed_on
from capyctl.machines.instance import Instance
from capyctl.machines.setting_off import Accepted


def learn(picture: Picture) -> Accepted | None:
    """Figures of the present revision's launches that are not kept yet; None when all are."""
    deployment = picture.deployment
    known = deployment.measured
    for one in (*picture.active, *picture.retiring):
        if one.seen is not None and one.revision >= deployment.measured_since:
            known = merged(known, one.seen)
    if known == deployment.measured:
        return None
    return Accepted(deployment=attrs.evolve(deployment, measured=known))


def files_changed(deployment: Deployment, one: Instance) -> Accepted | None:
    """A launch or wake found other files than were measured: nothing more starts on them.

    The digest on record is what later measurements are held against.
    """
    record = deployment.checkpoint
    if one.failure is None or one.failure.code != "checkpoint_mismatch" or record.facts is None:
        return None
    if record.state is not DigestState.RECORDED or one.revision < deployment.measured_since:
        return None
    if record.hosts:
        host = HostId(one.last_host or "")
        after = changed_on(deployment, host, one.failure.detail)
        return None if after == deployment else Accepted(deployment=after)
    mismatch = attrs.evolve(
        record,
        state=DigestState.MISMATCH,
        expected=record.facts.digest,
        diagnostic="checkpoint_mismatch",
        detail=f"{one.failure.detail}; restore the files and start again, or deploy them anew",
    )
    return Accepted(deployment=attrs.evolve(deployment, checkpoint=mismatch, resolved=None))

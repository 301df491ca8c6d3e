"""A host that does not say it can do something is not asked for it."""

from __future__ import annotations

import attrs
import pytest

from capyctl.contracts.checkpoints import Unfetchable, Unmeasurable
from capyctl.contracts.hosts import CapabilityMissing
from tests.link.fakes import PUBLICATION, order
from tests.link.rig import open_rig
from tests.link.test_contract import SOURCE


async def test_what_a_host_cannot_do_is_answered_without_asking_it(autojump_clock):
    async with open_rig(started=False) as rig:
        rig.publication = attrs.evolve(PUBLICATION, capabilities=())
        rig.start_host()
        await rig.live()
        record = await rig.remote.prepare(order())
        asked = dict(rig.machine.calls)

        with pytest.raises(Unmeasurable, match="host_capability_missing:checkpoint_digest"):
            await rig.remote.measure("/models/m", weights_file=None)
        with pytest.raises(Unfetchable, match="host_capability_missing:model_sources") as refused:
            await rig.remote.fetch(SOURCE, lambda *_: None)
        with pytest.raises(CapabilityMissing, match="host_capability_missing:engine_log_tail"):
            await rig.remote.log_tail(record, bytes_max=10)

        assert refused.value.terminal
        assert dict(rig.machine.calls) == asked, "nothing but the launch was asked of it"


async def test_one_that_can_is_asked(autojump_clock):
    async with open_rig() as rig:
        await rig.live()
        record = await rig.remote.prepare(order())

        await rig.remote.log_tail(record, bytes_max=10)

        assert rig.machine.calls["log_tail", record.launch] == 1

"""`parked_growth_limit` is that of the machine that an instance is on."""

from __future__ import annotations

from capyctl.control.directory import Directory
from capyctl.control.surroundings import World
from capyctl.domain.devices import MachineShape
from capyctl.domain.hosts import HostPublication, HostRecord
from capyctl.domain.ids import HostId


def test_each_machine_has_its_own():
    directory = Directory()
    publication = HostPublication(
        shape=MachineShape(host=HostId("a"), gpus=(), domains=()),
        version="0.1.0",
        models_root="/m",
        parked_growth_limit="50%",
    )
    directory.load(
        [
            HostRecord(id=HostId("a"), name="a", publication=publication),
            HostRecord(id=HostId("b"), name="b"),
        ]
    )
    world = World(
        store=None,
        clock=None,
        ids=None,
        hosts={},
        directory=directory,
        session_epoch=1,
        log=lambda *_, **__: None,
        parked_growth_limit="off",
    )

    assert world.growth_limit_on(HostId("a")) == "50%"
    assert world.growth_limit_on(HostId("b")) == "off"
    assert world.growth_limit_on(HostId("this machine")) == "off"

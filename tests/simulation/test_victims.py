"""Who is moved out of the way in worlds: looked at in the moment it is decided."""

from __future__ import annotations

import pytest

from capyctl.control.turns import Turns
from capyctl.simulation.run import Simulation

WORLDS_COUNT = 20


@pytest.mark.slow
def test_no_victim_is_warm_explicit_waited_for_or_on_its_way(monkeypatch):
    open_turn = Turns.open
    moved = []

    async def look_and_open(self, ask, waiting, wanted, found):
        directory = self._world.directory
        for victim in found.victims:
            owner = victim.instance.deployment
            spec = directory.deployments[owner].spec
            own = owner == wanted.instance.deployment
            one = directory.instance(victim.instance)
            waiting_count = directory.admission(owner).waiting_count
            moved.append(one.state.value)
            assert one.state.value in ("ready", "parked"), victim
            assert not own or one.state.value == "parked", victim
            assert own or not (spec.warm or spec.explicit), victim
            assert own or waiting_count == 0, victim
        await open_turn(self, ask, waiting, wanted, found)

    monkeypatch.setattr(Turns, "open", look_and_open)
    for seed in range(WORLDS_COUNT):
        Simulation(seed).run()

    assert {"ready", "parked"} <= set(moved), "nobody was moved: this saw nothing"

"""An engine whose host's process began anew: no request reaches it there before it is proven."""

from __future__ import annotations

import attrs

from capyctl.domain.operations import Operation
from capyctl.machines.instance import CloseGate, Effect, Instance, InstanceState, Prove
from capyctl.machines.starting import then_done

PROVE_S = 60.0
STARTING_GATE = "starting"
"""As a gate is that was never open: the proof opens it."""


def serving_again(
    one: Instance, ready: Instance
) -> tuple[Instance, tuple[Operation, ...], tuple[Effect, ...]]:
    """What becomes of ``one``, whose drain or park came to nothing and which would be ``ready``.

    Ready, and the start that waited for the way down has ended. Where the host began anew
    meanwhile, all that comes after the proof, before which the gate stays closed.
    """
    if not one.proof_due:
        return attrs.evolve(ready, then=None), then_done(one), ()
    assert one.launch is not None
    doubted = attrs.evolve(ready, state=InstanceState.RECONCILING, proof_due=False)
    return doubted, (), (CloseGate(STARTING_GATE), Prove(one.launch, PROVE_S))

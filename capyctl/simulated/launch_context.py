"""What every simulated engine finds out before it starts: document, behaviour, model, memory."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import attrs

from capyctl.simulated.behaviour import BadDocument, Behaviour, Faults
from capyctl.simulated.document import SimulatedDocument, parse_simulate
from capyctl.simulated.engine_memory import EngineMemory, find_gpu
from capyctl.simulated.engines import CHARGES, DOCUMENT, USAGE
from capyctl.simulated.process_tree import ProcessTree
from capyctl.simulated.usage import count_launch


@attrs.frozen(kw_only=True)
class LaunchContext:
    """One launch's surroundings, read from its environment."""

    document: SimulatedDocument
    behaviour: Behaviour
    usage_dir: Path | None
    charges: Mapping[str, Mapping[str, int]] | None
    visible_gpus: str | None

    def memory(self, tree: ProcessTree) -> EngineMemory:
        return EngineMemory(
            document=self.document,
            behaviour=self.behaviour,
            gpu=find_gpu(self.document, self.visible_gpus),
            usage_dir=self.usage_dir,
            charges=self.charges,
            owner_pid=tree.memory_owner,
        )


def read_context(
    env: Mapping[str, str], *, model_path: str, served_names: tuple[str, ...]
) -> LaunchContext:
    """Count this launch of the model, and settle which of its faults this one has.

    Raises:
        BadDocument: the document or the charges cannot be read.
    """
    document = parse_simulate(env.get(DOCUMENT, ""))
    usage_dir = Path(env[USAGE]) if env.get(USAGE) else None
    behaviour = document.behaviour_of(model_path, served_names)
    bound = behaviour.faults.first_launches
    if bound is not None and usage_dir is not None:
        model = served_names[0] if served_names else model_path
        if count_launch(usage_dir, model) > bound:
            behaviour = attrs.evolve(behaviour, faults=Faults())
    return LaunchContext(
        document=document,
        behaviour=behaviour,
        usage_dir=usage_dir,
        charges=_read_charges(env.get(CHARGES)),
        visible_gpus=env.get("CUDA_VISIBLE_DEVICES"),
    )


def _read_charges(text: str | None) -> Mapping[str, Mapping[str, int]] | None:
    if not text:
        return None
    try:
        return {
            str(phase): {str(domain): int(count) for domain, count in domains.items()}
            for phase, domains in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise BadDocument(f"{CHARGES} must map phases to domains to bytes") from error


def ending_signals(behaviour: Behaviour) -> tuple[signal.Signals, ...]:
    """The signals on which a loaded engine ends in its own way."""
    if behaviour.faults.ignores_sigterm:
        return (signal.SIGINT,)
    return signal.SIGTERM, signal.SIGINT


def renamed(names: tuple[str, ...], behaviour: Behaviour) -> tuple[str, ...]:
    """The names the engine serves under, which a fault may change."""
    if not behaviour.faults.wrong_model_name:
        return names
    return tuple(f"not-{name}" for name in names)

"""Live load of every model, as GET metrics/load shows it."""

from __future__ import annotations

from typing import Any

import attrs

from capyctl.control.surroundings import World
from capyctl.domain.devices import EngineSample
from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.machines.deployment import Deployment, Picture
from capyctl.machines.instance import Instance
from capyctl.machines.observed import observed_instance

STALE_AFTER_MS = 3000
KEPT_S = 30.0
_DEFAULT_COUNTS = {"vllm": 32, "llamacpp": 4, "tensorfold": 8}


@attrs.define(eq=False)
class LoadView:
    """The newest sample of each instance, and how to show them. Give `keep` to the sampler."""

    world: World
    samples: dict[InstanceId, EngineSample] = attrs.field(factory=dict)

    def keep(self, instance: InstanceId, sample: EngineSample) -> None:
        self.samples[instance] = sample

    def render(self, only: DeploymentId | None) -> dict[str, Any]:
        """The body of the answer: all deployments, or one."""
        directory = self.world.directory
        chosen = sorted(d for d in directory.deployments if only in (None, d))
        return {
            "observed_at_ms": self.world.clock.wall_ms(),
            "stale_after_ms": STALE_AFTER_MS,
            "deployments": [self._deployment(directory.deployments[d]) for d in chosen],
        }

    def _deployment(self, deployment: Deployment) -> dict[str, Any]:
        directory = self.world.directory
        admission = directory.admission(deployment.id)
        picture = Picture(
            deployment=deployment, instances=directory.instances.get(deployment.id, {})
        )
        return {
            "deployment_id": deployment.id,
            "name": deployment.spec.name,
            "router": {
                "in_flight": admission.running_count,
                "in_flight_limit": admission.running_max,
                "waiting": admission.waiting_count,
                "waiting_limit": admission.pending_max,
            },
            "max_running": _max_running(deployment),
            "instances": [self._instance(one, deployment) for one in picture.active],
        }

    def _instance(self, one: Instance, deployment: Deployment) -> dict[str, Any]:
        gate = self.world.directory.gate(one.id)
        host = one.last_host if one.held is None else str(one.held.candidate.host)
        return {
            "index": one.id.index,
            "host_id": host,
            "generation": one.generation or None,
            "observed_state": observed_instance(one),
            "router_in_flight": gate.held_count,
            "max_running": _max_running(deployment, self.samples.get(one.id)),
            "sample": self._sample(one, gate.held_count),
        }

    def _sample(self, one: Instance, in_flight: int) -> dict[str, Any] | None:
        sample = self.samples.get(one.id)
        now_s = self.world.clock.monotonic_s()
        if sample is None or now_s - sample.at_s > KEPT_S or one.launch is None:
            self.samples.pop(one.id, None)
            return None
        age_ms = max(0, round((now_s - sample.at_s) * 1000))
        ratio = sample.kv_usage_ratio
        return {
            "sampled_at_ms": self.world.clock.wall_ms() - age_ms,
            "age_ms": age_ms,
            "fresh": age_ms <= STALE_AFTER_MS,
            "ingress_in_flight": in_flight,
            "engine": {
                "running": sample.running,
                "waiting": sample.waiting,
                "kv_usage_ppm": None if ratio is None else round(ratio * 1_000_000),
            },
        }


def _max_running(
    deployment: Deployment, sample: EngineSample | None = None
) -> dict[str, Any] | None:
    """As declared or by the family's default; what is left to the engine, as it says itself."""
    resolved = deployment.resolved
    if resolved is None:
        return None
    engine = resolved.engine
    if engine.concurrency is not None:
        default = _DEFAULT_COUNTS.get(engine.family)
        source = "default" if engine.concurrency == default else "declared"
        return {"count": engine.concurrency, "source": source}
    if sample is not None and sample.running_limit_count is not None:
        return {"count": sample.running_limit_count, "source": "engine"}
    return {"source": "engine_default"}

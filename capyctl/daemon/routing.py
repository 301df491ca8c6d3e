"""Keeps the data plane's route table in step with the committed deployments."""

from __future__ import annotations

from collections.abc import Callable

from capyctl.contracts.store import Committed
from capyctl.control.directory import Directory
from capyctl.dataplane.routes import Route, RouteTable
from capyctl.domain.specs import ModelTask
from capyctl.machines.deployment import Deployment

_SALTED = frozenset({"vllm", "sglang"})


class Routing:
    """Give :meth:`apply` to the store, after the directory's; :meth:`table` to the plane."""

    def __init__(
        self,
        directory: Directory,
        *,
        engine_paths: Callable[[str, ModelTask], frozenset[str]],
        stream_idle_s: float,
    ) -> None:
        self._directory = directory
        self._engine_paths = engine_paths
        self._stream_idle_s = stream_idle_s
        self._table: RouteTable | None = None

    def apply(self, batch: tuple[Committed, ...]) -> None:
        for committed in batch:
            change = committed.change
            if change.deleted is not None or any(isinstance(p, Deployment) for p in change.puts):
                self._table = None

    def set_stream_idle(self, stream_idle_s: float) -> None:
        """For requests from now on."""
        self._stream_idle_s = stream_idle_s
        self._table = None

    def table(self) -> RouteTable:
        """The table as of the last commit; built once per change."""
        if self._table is None:
            self._table = RouteTable(models=self._models())
        return self._table

    def _models(self) -> dict[str, Route]:
        models: dict[str, Route] = {}
        deployments = self._directory.deployments.values()
        for deployment in sorted(deployments, key=lambda d: d.id):
            for name in deployment.spec.routes:
                models[name] = self._route(name, deployment)
        return models

    def _route(self, name: str, deployment: Deployment) -> Route:
        spec = deployment.spec
        return Route(
            name=name,
            deployment=deployment.id,
            admission=self._directory.admission(deployment.id),
            engine_paths=self._engine_paths(spec.family, spec.task),
            family=spec.family,
            takes_cache_salt=spec.family in _SALTED,
            request_deadline_s=spec.request_deadline_s,
            stream_idle_max_s=self._stream_idle_s,
        )

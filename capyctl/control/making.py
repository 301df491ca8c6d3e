"""Makes an instance's actor, again after a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors import ChildSpec, Ref, Supervisor
from capyctl.control.directory import Directory
from capyctl.control.instance import InstanceActor, InstanceNeeds
from capyctl.domain.ids import InstanceId


def maker(id: InstanceId, needs: InstanceNeeds) -> Callable[[], InstanceActor]:
    """Of one instance: only the first actor meets a fresh daemon, the others its restart."""
    made = False

    def make() -> InstanceActor:
        nonlocal made
        actor = InstanceActor(id, needs, first=not made)
        made = True
        return actor

    return make


class Making:
    """Starts the actors of one deployment's instances at first use, and ends them for good."""

    def __init__(self, directory: Directory, instances: Supervisor, needs: InstanceNeeds) -> None:
        self._directory = directory
        self._instances = instances
        self._needs = needs

    def ref(self, id: InstanceId) -> Ref[Any]:
        """The instance's actor."""
        found = self._directory.instance_refs.get(id)
        if found is not None:
            return found
        name, count = f"instance/{id}", 1
        while self._instances.find(name) is not None:
            # One that was retired is on its way out, and this index is used again.
            count += 1
            name = f"instance/{id}~{count}"
        ref = self._instances.start_soon(ChildSpec(name=name, make=maker(id, self._needs)))
        self._directory.instance_refs[id] = ref
        return ref

    def forget(self, id: InstanceId) -> None:
        """The instance is no more."""
        ref = self._directory.instance_refs.get(id)
        if ref is not None:
            self._instances.stop_soon(ref.name)
        self._directory.forget_instance(id)

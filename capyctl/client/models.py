"""What the API tells, as typed values. Fields that this release does not know are in ``raw``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from capyctl.client.errors import NotTheApi

Json = Mapping[str, Any]
T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Receipt:
    """The answer to an accepted change. Accepted is not done."""

    deployment_id: str
    operation_id: str | None
    """None for the stop of an instance that held nothing."""
    revision: int
    joined: bool
    """The action joined ``operation_id``, which was under way already."""
    checkpoint_digest: str | None
    victims: tuple[str, ...]
    """Of an evicting start: ``<deployment id>/<index>`` of each."""
    raw: Json = attrs.field(repr=False)

    @classmethod
    def read(cls, row: Json) -> Receipt:
        """Raises NotTheApi when a field is missing or no number."""
        return _reading(lambda: cls._read(row), "receipt")

    @classmethod
    def _read(cls, row: Json) -> Receipt:
        return cls(
            deployment_id=str(row["deployment_id"]),
            operation_id=row["operation_id"],
            revision=int(row["revision"]),
            joined=row["joined"] is True,
            checkpoint_digest=row.get("checkpoint_digest"),
            victims=tuple(row.get("victims") or ()),
            raw=row,
        )


@attrs.frozen(kw_only=True)
class Latest:
    """The newest operation of a deployment or instance, and its trouble if it has any."""

    id: str
    kind: str
    state: str
    error_code: str | None
    reason: str | None
    hint: str | None
    given_up: bool
    """Nothing more is tried, though the operation stays pending until its deadline."""

    @classmethod
    def read(cls, row: Json | None) -> Latest | None:
        if row is None:
            return None
        return cls(
            id=str(row["id"]),
            kind=str(row["kind"]),
            state=str(row["state"]),
            error_code=row.get("error_code"),
            reason=row.get("reason"),
            hint=row.get("hint"),
            given_up=row.get("given_up") is True,
        )


@attrs.frozen(kw_only=True)
class Instance:
    index: int
    host_id: str | None
    observed_state: str
    revision: int | None
    """The one it runs; None before it ran."""
    lifecycle: str
    operator_stopped: bool
    last_error: str | None
    raw: Json = attrs.field(repr=False)

    @classmethod
    def read(cls, row: Json) -> Instance:
        revision = row.get("revision")
        return cls(
            index=int(row["index"]),
            host_id=row.get("host_id"),
            observed_state=str(row["observed_state"]),
            revision=None if revision is None else int(revision),
            lifecycle=str(row.get("lifecycle", "active")),
            operator_stopped=row.get("operator_stopped") is True,
            last_error=row.get("last_error"),
            raw=row,
        )


@attrs.frozen(kw_only=True)
class Deployment:
    id: str
    name: str
    revision: int
    """What the next change must name."""
    desired_state: str
    observed_state: str
    desired_instances: int
    ready_instances: int
    conditions: tuple[str, ...]
    instances: tuple[Instance, ...]
    timeouts: Mapping[str, int]
    """Milliseconds by name: the windows that deadlines of actions are taken from."""
    digest_state: str | None
    digest_diagnostic: str | None
    is_explicit: bool
    """Only an action starts it."""
    latest: Latest | None
    raw: Json = attrs.field(repr=False)

    @property
    def is_ready(self) -> bool:
        """Every instance that the configuration asks for serves."""
        return self.ready_instances == self.desired_instances

    @classmethod
    def read(cls, row: Json) -> Deployment:
        """Raises NotTheApi when a field is missing or no number."""
        return _reading(lambda: cls._read(row), "deployment")

    @classmethod
    def _read(cls, row: Json) -> Deployment:
        digest: Json = row.get("checkpoint_digest") or {}
        windows: Json = row.get("timeouts") or {}
        return cls(
            id=str(row["id"]),
            name=str(row["name"]),
            revision=int(row["revision"]),
            desired_state=str(row["desired_state"]),
            observed_state=str(row["observed_state"]),
            desired_instances=int(row["desired_instances"]),
            ready_instances=int(row["ready_instances"]),
            conditions=tuple(row.get("conditions") or ()),
            instances=tuple(Instance.read(one) for one in row["instances"]),
            timeouts={name: ms for name, ms in windows.items() if isinstance(ms, int)},
            digest_state=digest.get("state"),
            digest_diagnostic=digest.get("diagnostic"),
            is_explicit=row.get("activation") == "explicit",
            latest=Latest.read(row.get("latest_operation")),
            raw=row,
        )


@attrs.frozen(kw_only=True)
class Operation:
    """One change that was accepted, and how far it is."""

    id: str
    deployment_id: str | None
    action: str
    state: str
    error_code: str | None
    accepted_at: str
    """UTC, ISO 8601 with milliseconds."""

    @property
    def is_open(self) -> bool:
        return self.state in ("pending", "running")

    @classmethod
    def read(cls, row: Json) -> Operation:
        return cls(
            id=str(row["id"]),
            deployment_id=row.get("deployment_id"),
            action=str(row["action"]),
            state=str(row["state"]),
            error_code=row.get("error_code"),
            accepted_at=str(row["accepted_at"]),
        )


@attrs.frozen(kw_only=True)
class Snapshot:
    """One consistent state."""

    cursor: str
    """Where the events go on from."""
    deployments: tuple[Deployment, ...]
    routes: Mapping[str, str]
    """Deployment id by the name that clients send."""
    operations: tuple[Operation, ...]
    raw: Json = attrs.field(repr=False)

    @classmethod
    def read(cls, row: Json) -> Snapshot:
        """Raises NotTheApi when a field is missing or no number."""
        return _reading(lambda: cls._read(row), "snapshot")

    @classmethod
    def _read(cls, row: Json) -> Snapshot:
        return cls(
            cursor=str(row["cursor"]),
            deployments=tuple(Deployment.read(one) for one in row["deployments"]),
            routes={one["route"]: one["deployment_id"] for one in row["routes"]},
            operations=tuple(Operation.read(one) for one in row["operations"]),
            raw=row,
        )

    def find(self, id_or_name: str) -> Deployment | None:
        """A deployment by its id, else by its name."""
        named = None
        for one in self.deployments:
            if one.id == id_or_name:
                return one
            if one.name == id_or_name:
                named = one
        return named

    def operation(self, id: str | None) -> Operation | None:
        return next((one for one in self.operations if one.id == id), None)


@attrs.frozen(kw_only=True)
class Event:
    """One committed change. A signal: the snapshot is the state."""

    cursor: str | None
    """Where to go on from; None only on the last frame of a stream that failed."""
    kind: str
    deployment_id: str | None
    operation_id: str | None
    payload: Json
    recorded_at_ms: int | None

    @classmethod
    def read(cls, cursor: str | None, kind: str, row: Json) -> Event:
        """Raises NotTheApi when a field is no number."""
        return _reading(lambda: cls._read(cursor, kind, row), "event")

    @classmethod
    def _read(cls, cursor: str | None, kind: str, row: Json) -> Event:
        recorded = row.get("recorded_at_ms")
        return cls(
            cursor=cursor,
            kind=kind,
            deployment_id=row.get("deployment_id"),
            operation_id=row.get("operation_id"),
            payload=row.get("payload") or row,
            recorded_at_ms=None if recorded is None else int(recorded),
        )


def _reading(read: Callable[[], T], what: str) -> T:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise NotTheApi(f"the {what} is not as this release knows it: {problem!r}") from problem

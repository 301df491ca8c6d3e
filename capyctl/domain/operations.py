"""Tracked work with an id: what an accepted change set off, and what became of it."""

from __future__ import annotations

import enum

import attrs

from capyctl.domain.ids import DeploymentId, OperationId


class OperationKind(enum.Enum):
    """The `action` of an operation, as the management API shows it."""

    CREATE = "managed_configuration_create"
    REPLACE = "managed_configuration_replace"
    INITIALIZE = "initialize"
    RESTORE = "restore"
    PARK = "park"
    CLEANUP = "ordinary_cleanup"
    UNARMED_STOP = "ordinary_unarmed_stop"
    PREINITIALIZE = "preinitialize"
    DELETE = "delete"


class OperationState(enum.Enum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELLED})


@attrs.frozen(kw_only=True)
class Operation:
    """One piece of work. It ends exactly once; an ended one never changes again."""

    id: OperationId
    deployment: DeploymentId
    instance: int | None
    """Index of the one instance it is about; None for work on the whole deployment."""
    kind: OperationKind
    state: OperationState = OperationState.PENDING
    error_code: str | None = None
    """Closed token ``[a-z0-9_:.]``, at most 64 characters."""
    reason: str | None = None
    """One line for people, at most 512 bytes."""
    hint: str | None = None
    given_up: bool = False
    cause: str | None = None
    """Of a start: who wanted it, a value of `messages.instance.Cause`."""
    may_evict: bool = False
    """Of a start: whether others may be moved out of its way."""
    accepted_at_ms: int
    deadline_at_ms: int | None = None
    """Wall clock, milliseconds since 1970; None for work that was done when accepted."""

    @property
    def open(self) -> bool:
        return self.state not in ENDED

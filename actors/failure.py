"""One exception, or a whole group of them, as one value for logs and for death watchers."""

from __future__ import annotations

import traceback as tracebacks

import attrs
import trio

TEXT_CHARS_MAX = 2_000
TRACEBACK_CHARS_MAX = 20_000


@attrs.frozen(kw_only=True)
class Failure:
    """Why an actor ended without being asked. Plain text only, so it can be kept and sent."""

    name: str
    """The actor's name."""
    type: str
    """Class name of the first exception that is not a group."""
    text: str
    """What it said, and the classes of the others if there were several."""
    traceback: str = attrs.field(repr=False)

    @classmethod
    def of(cls, name: str, problem: BaseException) -> Failure:
        """Flatten ``problem``: a nursery wraps even a single exception into a group."""
        first, *others = leaves(problem)
        text = str(first)
        if others:
            text += f" (and {len(others)} more: {', '.join(type(o).__name__ for o in others)})"
        return cls(
            name=name,
            type=type(first).__name__,
            text=text[:TEXT_CHARS_MAX],
            traceback="".join(tracebacks.format_exception(problem))[-TRACEBACK_CHARS_MAX:],
        )

    def __str__(self) -> str:
        return f"{self.name} failed: {self.type}: {self.text}"


def leaves(problem: BaseException) -> list[BaseException]:
    """The exceptions inside ``problem`` that are not groups, in order; at least one."""
    if not isinstance(problem, BaseExceptionGroup):
        return [problem]
    return [leaf for inner in problem.exceptions for leaf in leaves(inner)]


def unwrap(problem: Exception) -> Exception:
    """The one exception inside nested groups of one, or ``problem`` as it is."""
    found = leaves(problem)
    only = found[0]
    return only if len(found) == 1 and isinstance(only, Exception) else problem


def part_cancelled(group: BaseExceptionGroup) -> tuple[Exception | None, BaseException | None]:
    """Part ``group`` into what failed and what must go on upwards (cancellation, interrupts)."""
    failed, others = group.split(Exception)
    assert failed is None or isinstance(failed, ExceptionGroup)
    return failed, others


def is_cancelled(problem: BaseException) -> bool:
    """Whether cancellation is all there is in ``problem``."""
    return all(isinstance(leaf, trio.Cancelled) for leaf in leaves(problem))

"""One exception or a whole group becomes one Failure."""

import pytest
import trio

from actors import Failure
from actors.failure import TEXT_CHARS_MAX, TRACEBACK_CHARS_MAX, part_cancelled, unwrap


def _raised(problem):
    try:
        raise problem
    except BaseException as raised:
        return raised


def test_a_plain_exception():
    failure = Failure.of("a", _raised(ValueError("broken")))

    assert (failure.name, failure.type, failure.text) == ("a", "ValueError", "broken")
    assert "_raised" in failure.traceback
    assert str(failure) == "a failed: ValueError: broken"
    assert "Traceback" not in repr(failure)


def test_nested_groups_are_flattened():
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("broken")])])

    failure = Failure.of("a", group)

    assert (failure.type, failure.text) == ("ValueError", "broken")


def test_several_exceptions_name_the_first_and_count_the_others():
    group = ExceptionGroup("", [ValueError("broken"), KeyError("k"), OSError()])

    assert Failure.of("a", group).text == "broken (and 2 more: KeyError, OSError)"


def test_what_an_exception_says_is_bounded():
    failure = Failure.of("a", ValueError("x" * 1_000_000))

    assert len(failure.text) == TEXT_CHARS_MAX
    assert len(failure.traceback) == TRACEBACK_CHARS_MAX


def test_unwrap_opens_groups_of_one_only():
    one, two = ValueError(), KeyError()
    pair = ExceptionGroup("", [one, two])

    assert unwrap(one) is one
    assert unwrap(ExceptionGroup("", [ExceptionGroup("", [one])])) is one
    assert unwrap(pair) is pair


async def test_cancellation_is_parted_from_failures():
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            mixed = BaseExceptionGroup("", [cancelled, ValueError("broken")])
            failed, others = part_cancelled(mixed)
            raise
    assert failed is not None
    assert Failure.of("a", failed).text == "broken"
    assert others is not None
    assert [type(one) for one in others.exceptions] == [trio.Cancelled]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_no_failure(kind):
    failed, others = part_cancelled(BaseExceptionGroup("", [kind()]))

    assert failed is None
    assert isinstance(others.exceptions[0], kind)

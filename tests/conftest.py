"""Every async test ends: a deadlock is a failure, never a hang. Hypothesis has no deadline.

What a test leaves unclosed fails that test, or the last one of its module, not one far away.
"""

import functools
import gc
import inspect
import os

import hypothesis
import pytest

from actors.testing import bounded, run_bounded

hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_collection_finish():
    # What the modules hold needs no second look, which makes the looks after tests cheap.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_by_the_module():
    """Older garbage than a test's own: an unclosed socket or pipe in it warns, and fails."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def nothing_is_left_by_the_test():
    yield
    gc.collect(1)


def pytest_collection_modifyitems(items):
    for item in items:
        test = getattr(item, "obj", None)
        if (given := getattr(test, "hypothesis", None)) is not None:
            # pytest-trio runs what is under @given with trio.run, so the bound goes inside.
            if inspect.iscoroutinefunction(given.inner_test):
                given.inner_test = with_bound(given.inner_test)
        elif inspect.iscoroutinefunction(test):
            item.add_marker(pytest.mark.trio(run=run_bounded))


def with_bound(test):
    @functools.wraps(test)
    async def bounded_test(*args, **kwargs):
        return await bounded(functools.partial(test, *args, **kwargs))

    return bounded_test

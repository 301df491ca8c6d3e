"""Skips, with its reason, whatever needs a card that is not here."""

import pytest

from capyctl.gpus.nvml import CardsUnreadable, NoDriver, Nvml


@pytest.fixture(scope="session")
def cards():
    """The cards of this machine, each with memory of its own."""
    try:
        found = Nvml().read()
    except NoDriver as none:
        pytest.skip(f"no NVIDIA card here: {none}")
    except CardsUnreadable as problem:
        pytest.fail(f"there is a driver, and it does not answer sensibly: {problem}")
    if any(one.integrated for one in found):
        pytest.skip("the card shares the machine's memory; these are for cards of their own")
    return found

import pytest

from tests.simulated.running import Machine


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)

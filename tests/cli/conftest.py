import pytest

from tests.cli.fake_management import Bench, FakeManagement


@pytest.fixture
def management():
    with FakeManagement() as fake:
        yield fake


@pytest.fixture
def bench(management, tmp_path):
    return Bench(tmp_path / "state", management.address)

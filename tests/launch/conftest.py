import pytest

from tests.launch.programs import Bench


@pytest.fixture
async def bench(tmp_path):
    bench = Bench(tmp_path)
    try:
        yield bench
    finally:
        await bench.aclose()

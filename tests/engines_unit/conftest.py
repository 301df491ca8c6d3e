import pytest

from tests.engines_unit.fake_server import FakeServer


@pytest.fixture
async def serve(nursery):
    async def start(handler):
        server = FakeServer(handler)
        await nursery.start(lambda task_status: server.serve(task_status=task_status))
        return server

    return start

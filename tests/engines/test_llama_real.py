"""The llama.cpp family against a real llama-server on the CPU, from its rendered command line."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess

import attrs
import pytest
import trio

from capyctl.contracts.engines import NotReady
from capyctl.dataplane.routes import ENGINE_PATHS
from capyctl.domain.specs import ModelTask
from capyctl.engines.activity import Activity, look
from capyctl.engines.http import request_json
from capyctl.engines.installations import read_llama_server
from capyctl.engines.llama_cpp import LlamaCpp
from capyctl.engines.llama_cpp_options import LLAMA_CPP_OPTIONS
from capyctl.engines.preparation import prepare_launch
from capyctl.engines.readiness import Caller
from tests.engines_unit.scenes import KEYS, control, order, question_for, surroundings

pytestmark = [pytest.mark.engines, pytest.mark.slow]

READY_WITHIN_S = 60.0
END_WITHIN_S = 15.0


@pytest.fixture
def family(tmp_path):
    return LlamaCpp(surroundings=surroundings("bare", state_dir=str(tmp_path)))


@pytest.fixture
def ordered():
    return order(
        "llamacpp",
        devices=(),
        executable=(os.environ["CAPYCTL_TEST_LLAMA_SERVER"],),
        model_path=os.environ["CAPYCTL_TEST_GGUF"],
        context_length=500,
        concurrency=2,
        profile_args=("--threads", "1", "--no-warmup"),
    )


@pytest.fixture
def started(family, ordered, free_port, tmp_path):
    """The engine as rendered, and how to reach it. Ended by its own pid, and SIGTERM is enough."""
    with engine_of(family, ordered, free_port, tmp_path) as engine:
        yield engine, control(free_port, admin_key=None)


@contextlib.contextmanager
def engine_of(family, ordered, free_port, tmp_path):
    prepare_launch(ordered, family.surroundings)
    rendered = family.render(ordered, port=free_port, keys=KEYS)
    with (tmp_path / "output").open("w") as output:
        engine = subprocess.Popen(
            rendered.argv, env=rendered.env, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield engine
        if engine.poll() is None:
            engine.terminate()
        engine.wait(END_WITHIN_S)
    finally:
        if engine.poll() is None:
            os.killpg(engine.pid, signal.SIGKILL)
            engine.wait()


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


async def test_the_rendered_command_line_becomes_ready_as_ordered(family, ordered, started):
    engine, at = started
    with trio.fail_after(READY_WITHIN_S):
        assert await family.wait_ready(at, ordered) is None
    assert engine.poll() is None
    seen = await family.sample(at)
    assert (seen.running, seen.waiting, seen.kv_usage_ratio) == (0, 0, 0.0)
    assert await look(family, at) is Activity.IDLE

    more = attrs.evolve(ordered, engine=attrs.evolve(ordered.engine, concurrency=3))
    with pytest.raises(NotReady, match="total_slots"):
        await family.wait_ready(at, more)
    other = attrs.evolve(at, endpoint=attrs.evolve(at.endpoint, served_name="other"))
    with pytest.raises(NotReady, match="effective_args_mismatch"):
        await family.wait_ready(other, ordered)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(generate, at.endpoint.port)
        with trio.fail_after(READY_WITHIN_S):
            seen = await family.sample(at)
            while seen is None or seen.running == 0:
                await trio.sleep(0.05)
                seen = await family.sample(at)
            assert await look(family, at) is Activity.BUSY
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("task", "typed"),
    [
        (ModelTask.EMBED, {"llamacpp.pooling": "mean"}),
        (ModelTask.RERANK, {}),
        (ModelTask.GENERATE, {}),
    ],
    ids=str,
)
async def test_its_routes_are_those_of_its_task(family, ordered, free_port, tmp_path, task, typed):
    engine = attrs.evolve(ordered.engine, task=task, typed=typed)
    ordered = attrs.evolve(ordered, engine=engine)
    at = attrs.evolve(control(free_port, admin_key=None), task=task)
    with engine_of(family, ordered, free_port, tmp_path):
        with trio.fail_after(READY_WITHIN_S):
            assert await family.wait_ready(at, ordered) is None
            caller = Caller(control=at)
            answers = {
                path: await caller.put(question_for(path), within_s=READY_WITHIN_S)
                for path in ENGINE_PATHS
            }
    answered = {path for path, reply in answers.items() if reply.status == 200}
    assert answered >= family.routes(task)
    # Its one model generates as well, whatever it was started for; a real embedder would not.
    generates = family.routes(ModelTask.GENERATE)
    also = {"/v1/embeddings"} if task is ModelTask.RERANK else set()
    assert answered - family.routes(task) <= generates | also
    if task is ModelTask.GENERATE:
        assert answered == generates


async def generate(port):
    body = {"model": "m", "max_tokens": 400, "messages": [{"role": "user", "content": "Count."}]}
    await request_json("POST", "127.0.0.1", port, "/v1/chat/completions", body, within_s=60)


def test_its_version_is_read():
    found = read_llama_server(os.environ["CAPYCTL_TEST_LLAMA_SERVER"])
    assert found.version.startswith("0.6.0")
    assert found.build_fingerprint.startswith(found.version)


def test_all_spellings_of_an_option_are_one_to_us():
    """A spelling that we do not know would slip past the reserved ones, or be given twice."""
    told = subprocess.run(
        [os.environ["CAPYCTL_TEST_LLAMA_SERVER"], "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    groups = 0
    for line in told.splitlines():
        names = re.match(r"(?:-[^ ,]+,? +)*-[^ ,]+", line)
        long = re.findall(r"--[a-z][a-z0-9.-]*", names.group()) if names else []
        if len(long) > 1:
            groups += 1
            known = {LLAMA_CPP_OPTIONS.canonical(name) for name in long}
            negatives = {n for n in known if n.startswith("no-") and n[3:] in known}
            assert len(known - negatives) == 1, long
    assert groups > 30

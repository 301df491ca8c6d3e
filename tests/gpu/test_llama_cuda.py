"""A real daemon with a llama-server that was built with CUDA, on a real card. `make test-gpu`."""

import os
import shutil
import subprocess

import pytest

from capyctl.config.engine_documents import YamlEngineDocuments
from capyctl.engines.registration import add_engine
from capyctl.gpus.nvml import Nvml
from tests.e2e.daemon import running, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SERVER, MODEL = "CAPYCTL_TEST_LLAMA_SERVER_CUDA", "CAPYCTL_TEST_GGUF"
SLACK_BYTES = 256 << 20


@pytest.fixture
def server(cards):
    for name in (SERVER, MODEL):
        if name not in os.environ:
            pytest.skip(f"{name} is not set: the path of {told(name)}")
    devices = subprocess.run(
        [os.environ[SERVER], "--list-devices"], capture_output=True, text=True, timeout=60
    )
    if "CUDA" not in devices.stdout + devices.stderr:
        pytest.skip(f"{os.environ[SERVER]} was built without CUDA")
    return os.environ[SERVER]


def told(name):
    return "a llama-server built with CUDA" if name == SERVER else "a small GGUF model"


@pytest.fixture
def root(server, tmp_path):
    engines = tmp_path / "config" / "capyctl" / "engines.yaml"
    engines.parent.mkdir(parents=True)
    add_engine(server, engines_file=engines, documents=YamlEngineDocuments(), name="llamacpp")
    for name in ("first", "second"):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        shutil.copyfile(os.environ[MODEL], folder / "model.gguf")
    return tmp_path


def used_bytes():
    """Of all cards, by everybody."""
    return sum(card.used_bytes for card in Nvml().read())


def test_it_answers_from_the_card_within_its_charge(root):
    with running(root, simulate=None) as daemon:
        before = used_bytes()
        a = daemon.create("first", engine="llamacpp")
        daemon.do(a, "start")
        daemon.wait_state(a, "ready", 180)
        reply = daemon.chat("first", max_tokens=16, temperature=0)
        held = used_bytes() - before
        daemon.do(a, "stop")
        daemon.wait_state(a, "stopped", 60)
        left = daemon.engines()
        wait_until(
            lambda: used_bytes() <= before + SLACK_BYTES, what="the card is as it was before"
        )
    assert reply.status == 200
    assert reply.json()["choices"][0]["message"]["content"]
    assert held > SLACK_BYTES, "nothing of it is on the card"
    assert left == []


def test_a_second_model_answers_beside_or_instead_of_the_first(root):
    with running(root, simulate=None) as daemon:
        for name in ("first", "second"):
            daemon.create(name, engine="llamacpp")
        replies = [daemon.chat(n, max_tokens=4).status for n in ("first", "second", "first")]
    assert replies == [200, 200, 200]

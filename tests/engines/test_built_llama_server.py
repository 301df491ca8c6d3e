"""The llama-server that `make test-engines` builds serves its small model."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

pytestmark = [pytest.mark.engines, pytest.mark.slow]

READY_S_MAX = 60.0
ANSWER_S_MAX = 60.0
END_S_MAX = 10.0


@pytest.fixture
def server(tmp_path) -> Iterator[str]:
    """The base URL of a llama-server on the CPU that has loaded its model."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    argv = [os.environ["CAPYCTL_TEST_LLAMA_SERVER"], "-m", os.environ["CAPYCTL_TEST_GGUF"]]
    argv += ["--host", "127.0.0.1", "--port", str(port), "-c", "512", "-np", "1", "-t", "1"]
    with (tmp_path / "output").open("w") as output:
        engine = subprocess.Popen(argv, stdout=output, stderr=output)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_healthy(url, engine)
        yield url
    finally:
        engine.terminate()
        try:
            engine.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()


def wait_healthy(url: str, engine: subprocess.Popen) -> None:
    give_up_s = time.monotonic() + READY_S_MAX
    while time.monotonic() < give_up_s:
        assert engine.poll() is None, f"llama-server ended with {engine.returncode}"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                assert answer.status == 200
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    pytest.fail(f"llama-server was not ready within {READY_S_MAX} s")


def test_a_chat_completion_is_answered(server):
    asked = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 24,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{server}/v1/chat/completions",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as answer:
        said = json.load(answer)

    assert said["choices"][0]["message"]["content"].strip()
    assert 0 < said["usage"]["completion_tokens"] <= 24

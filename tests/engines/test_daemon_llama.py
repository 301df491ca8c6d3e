"""A real daemon on the real machine with a real llama-server: the whole product, on the CPU."""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from capyctl.config.engine_documents import YamlEngineDocuments
from capyctl.engines.registration import add_engine
from tests.e2e.daemon import running, wait_until
from tests.e2e.page import SCRIPT, default_ports, differs, run_script
from tests.e2e.streams import Crowd, chat_stream, events

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="engines are ended through /proc"),
]

ARGS = ("--threads", "2", "--no-warmup")
SCRIPT_S_MAX = 300.0
LONG = {"max_tokens": 200, "ignore_eos": True}


@pytest.fixture
def root(tmp_path):
    """A root with the engine registered for a daemon of flags, and two copies of the model."""
    register(tmp_path / "config" / "capyctl" / "engines.yaml")
    for name in ("first", "second"):
        put_model(tmp_path / "models" / name)
    return tmp_path


def register(engines_file):
    engines_file.parent.mkdir(parents=True)
    add_engine(
        os.environ["CAPYCTL_TEST_LLAMA_SERVER"],
        engines_file=engines_file,
        documents=YamlEngineDocuments(),
        name="llamacpp",
        args=ARGS,
    )


def put_model(folder):
    source = Path(os.environ["CAPYCTL_TEST_GGUF"])
    folder.mkdir(parents=True)
    try:
        os.link(source, folder / source.name)
    except OSError:
        shutil.copyfile(source, folder / source.name)


def ready(daemon, name):
    id = daemon.create(name, engine="llamacpp")
    daemon.do(id, "start")
    daemon.wait_state(id, "ready", 120)
    return id


def pids(daemon):
    return sorted(one.pid for one in daemon.engines())


def test_the_script_of_the_page_with_another_engine_and_model(tmp_path):
    register(tmp_path / ".config" / "capyctl" / "engines.yaml")
    put_model(tmp_path / "models" / "SmolLM2")
    script = tmp_path / "controller.sh"
    text = SCRIPT.read_text()
    changed = text.replace('"engine": "vllm"', '"engine": "llamacpp"')
    changed = changed.replace('"model": "Qwen3-4B"', '"model": "SmolLM2"')
    script.write_text(changed)
    with default_ports() as stranger:
        if stranger is not None:
            pytest.skip(stranger)
        with running(tmp_path, plain=True, simulate=None) as daemon:
            status, lines = run_script(script, tmp_path, within_s=SCRIPT_S_MAX)
            left = daemon.processes()
    assert len(changed) != len(text)
    assert status == 0, lines
    assert differs(lines) is None, lines
    assert left == []


def test_chat_stream_and_tools(root):
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    with running(root, simulate=None) as daemon:
        id = ready(daemon, "first")
        chat = daemon.chat("first", max_tokens=8, temperature=0)
        with chat_stream(daemon, "first", max_tokens=8, temperature=0) as stream:
            stream.read()
        forced = daemon.chat("first", max_tokens=24, tools=[tool], tool_choice="required")
        bad = daemon.chat("first", tools="none")
        daemon.do(id, "stop")
        daemon.wait_state(id, "stopped")
        left = daemon.processes()
    answer = chat.json()
    assert chat.status == 200
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] <= 8
    assert stream.is_complete
    assert stream.text
    assert forced.status == 200, forced
    assert bad.status >= 400
    assert bad.json()["code"] in ("engine_rejected", "engine_error")
    assert left == []


def test_a_stop_waits_for_the_open_stream(root):
    # A busy machine may need a second for each of the sixty tokens.
    with running(root, simulate=None, sets=("server.switching.drain_timeout=300s",)) as daemon:
        id = ready(daemon, "first")
        with chat_stream(daemon, "first", max_tokens=60, ignore_eos=True) as stream:
            stream.read(2)
            daemon.do(id, "stop")
            refused = daemon.chat("first", max_tokens=1)
            stream.read()
        daemon.wait_state(id, "stopped")
        left = daemon.processes()
    assert stream.is_complete
    assert refused.json()["code"] == "deployment_stopped"
    assert left == []


def test_a_crashed_engine_is_seen_and_started_again(root):
    with running(root, simulate=None) as daemon:
        id = ready(daemon, "first")
        (before,) = pids(daemon)
        with chat_stream(daemon, "first", **LONG) as stream:
            stream.read(2)
            os.kill(before, signal.SIGKILL)
            stream.read()
        failed = daemon.wait_state(id, "failed")
        again = daemon.chat("first", max_tokens=2)
        (after,) = pids(daemon)
    assert stream.is_cut
    assert not stream.is_complete
    assert json.loads(stream.lines[-1])["error"]["code"] == "engine_error"
    assert "signal 9" in failed["instances"][0]["last_error"]
    assert again.status == 200
    assert after != before


def test_a_client_that_leaves_frees_its_slot(root):
    with running(root, simulate=None) as daemon:
        id = ready(daemon, "first")
        with chat_stream(daemon, "first", max_tokens=2000, ignore_eos=True) as stream:
            stream.read(2)
        load = f"/metrics/load?deployment={id}"
        wait_until(
            lambda: daemon.get(load).json()["deployments"][0]["router"]["in_flight"] == 0,
            what="nothing runs",
        )
        again = daemon.chat("first", max_tokens=2)
    assert again.status == 200


def test_two_models_take_turns_where_one_fits(root):
    with running(root, simulate=None) as daemon:
        first = ready(daemon, "first")
        shown = daemon.get(f"/deployments/{first}/effective-config").json()
        (placed,) = shown["hosts"][0]["effective"]["memory"]
        needed = placed["phases"]["ready"]["system"]
        daemon.stop()
        limit = f"{needed * 3 // 2 >> 20}MiB"
        daemon.sets = (f"host.resource_policy.memory.system.managed_limit={limit}",)
        daemon.start()
        daemon.wait_state(first, "ready")
        second = daemon.create("second", engine="llamacpp")
        with (
            chat_stream(daemon, "first", max_tokens=40, ignore_eos=True) as stream,
            Crowd(1) as crowd,
        ):
            stream.read(2)
            other = crowd.do(daemon.chat, "second", max_tokens=2)
            stream.read()
            answer = other.result(120)
        states = [daemon.deployment(id)["observed_state"] for id in (first, second)]
        back = daemon.chat("first", max_tokens=2)
        running_now = pids(daemon)
        switches = [e.kind for e in events(daemon) if e.kind == "switch_completed"]
    assert stream.is_complete
    assert (answer.status, back.status) == (200, 200)
    assert states == ["stopped", "ready"]
    assert len(running_now) == 1
    assert len(switches) == 2


def test_a_killed_daemon_adopts_its_engine(root):
    with running(root, simulate=None) as daemon:
        id = ready(daemon, "first")
        before = pids(daemon)
        daemon.kill()
        between = pids(daemon)
        daemon.start()
        daemon.wait_state(id, "ready")
        after = pids(daemon)
        chat = daemon.chat("first", max_tokens=2)
        log = daemon.get(f"/deployments/{id}/engine-log").json()
        status = daemon.stop()
        kept = pids(daemon)
    assert before == between == after == kept
    assert chat.status == 200
    assert status == 0
    assert re.search("llama|srv|slot", log["text"])

"""How the simulated vLLM starts, is told to end, and dies."""

import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest
import trio

from capyctl.simulated.usage import read_draws
from tests.simulated.running import PROGRAM, until
from tests.simulated.test_vllm_surface import CHAT, PLAIN

pytestmark = pytest.mark.slow


async def test_children_are_in_its_group_and_the_worker_holds_the_memory(machine):
    async with machine.vllm() as engine:
        core, worker = engine.children()
        (drawn,) = machine.drawn()
        name = await trio.Path(f"/proc/{core}/comm").read_text()

    assert name == "VLLM::EngineCor\n"
    assert drawn["pid"] == worker


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_end_while_idle(machine, number):
    async with machine.vllm() as engine:
        os.kill(engine.process.pid, number)
        exit_code = await engine.wait_exit()

        assert (exit_code, engine.children()) == (0, [])


async def test_told_to_end_as_a_group(machine):
    async with machine.vllm() as engine:
        os.killpg(engine.process.pid, signal.SIGTERM)
        exit_code = await engine.wait_exit()

        assert (exit_code, engine.children()) == (0, [])
    assert "EngineCore failed" not in engine.log


async def test_told_to_end_while_loading(machine):
    async with machine.vllm(wait=False, load_s=600) as engine:
        await engine.wait_line("Starting to load")
        engine.process.terminate()

        assert await engine.process.wait() == -signal.SIGTERM


async def test_an_open_stream_keeps_it_for_ever(machine):
    """Core and worker go at once; the stream neither ends nor fails; a second SIGTERM is lost."""
    async with machine.vllm(tokens_per_s=50.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body('"content":" ')
            os.killpg(engine.process.pid, signal.SIGTERM)
            await engine.wait_line("Waiting for connections to close")
            await until(lambda: not read_draws(machine.usage))
            engine.process.terminate()
            with trio.move_on_after(0.3) as waited:
                await stream.reply()
            running = engine.process.returncode is None
        exit_code = await engine.wait_exit()

    assert waited.cancelled_caught
    assert (running, exit_code) == (True, 0)


async def test_with_a_time_to_shut_down_it_drains(machine):
    async with machine.vllm("--shutdown-timeout", "30", tokens_per_s=50.0) as engine:
        request = engine.chat(stream=True, max_tokens=25)
        async with engine.open("POST", CHAT, request) as stream:
            await stream.wait_body('"content":" ')
            engine.process.terminate()
            await engine.wait_line("Shutting down")
            late = await engine.post(PLAIN, {"prompt": "x"})
            events = (await stream.reply()).events()
        exit_code = await engine.wait_exit()

    assert (late.status, exit_code) == (500, 0)
    assert (events[-2]["choices"][0]["finish_reason"], events[-1]) == ("length", "[DONE]")


async def test_a_lost_worker_is_answered_with_errors_and_code_zero(machine):
    async with machine.vllm(tokens_per_s=50.0, worker_loss_s=0.5) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body('"content":" ')
            os.kill(engine.children()[1], signal.SIGKILL)
            events = (await stream.reply()).events()
            health = await engine.get("/health")
            late = await engine.post(PLAIN, {"prompt": "x"})
            exit_code = await engine.wait_exit()

    assert events[-2]["error"]["type"] == "InternalServerError"
    assert events[-1] == "[DONE]"
    assert (health.status, late.status, exit_code) == (503, 500, 0)


async def test_killed_it_leaves_its_children_with_the_memory(machine):
    async with machine.vllm() as engine:
        _, worker = engine.children()
        engine.process.kill()
        exit_code = await engine.process.wait()
        left = engine.children()
        held = [draw.pid for draw in read_draws(machine.usage)]
        os.killpg(engine.process.pid, signal.SIGKILL)
        await until(lambda: not read_draws(machine.usage))

    assert exit_code == -signal.SIGKILL
    assert len(left) == 2
    assert held == [worker]


async def test_a_hang_up_ends_the_work_at_once(machine):
    async with machine.vllm("--max-num-seqs", "1", tokens_per_s=2.0) as engine:
        async with engine.open("POST", PLAIN, {"prompt": "x", "max_tokens": 60}) as asked:
            while b"} 1" not in (await running(engine)):
                pass
            del asked
        with trio.fail_after(15):
            while b"} 0" not in (await running(engine)):
                pass


async def running(engine) -> bytes:
    text = (await engine.get("/metrics")).body
    return next(line for line in text.splitlines() if line.startswith(b"vllm:num_requests_running"))


async def test_a_busy_port(machine):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        async with machine.vllm("--port", port, wait=False) as engine:
            # The last of two options counts: take ours away.
            engine.process.kill()
        ended = run("vllm", "serve", machine.folder / "v", "--host", "127.0.0.1", "--port", port)

    assert ended.returncode == 1
    assert "OSError: [Errno 98]" in ended.stdout


def run(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-I", str(PROGRAM), *map(str, arguments)],
        env=env,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_bad_usage():
    unknown = run("vllm", "serve", "/m", "--no-such-option")
    number = run("vllm", "serve", "/m", "--max-num-seqs", "many")
    missing = run("vllm", "serve", "/absent")

    assert (unknown.returncode, number.returncode, missing.returncode) == (2, 2, 1)
    assert unknown.stderr.endswith("vllm serve: error: unrecognized arguments: --no-such-option\n")


def test_version_and_no_family():
    assert run("vllm", "--version").stdout == "0.32.0\n"
    assert run().returncode == 2
    assert run("vllm", "serve", "/m", CAPYCTL_SIMULATED="{").returncode in (1, 2)


async def test_it_runs_as_a_module_too(machine):
    ended = await trio.run_process(
        [sys.executable, "-m", "capyctl.simulated.engine_program", "vllm", "--version"],
        capture_stdout=True,
    )

    assert ended.stdout == b"0.32.0\n"


async def test_it_starts_fast_and_small(machine):
    async with machine.vllm(wait=False, load_s=0.0) as engine:
        began = trio.current_time()
        await engine.wait_line("Application startup complete.")
        took_s = trio.current_time() - began
        statm = await trio.Path(f"/proc/{engine.process.pid}/statm").read_text()
        resident_bytes = int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    # 0.25 s and 28 MiB on an idle machine; room for one that is busy.
    assert took_s < 10
    assert resident_bytes < 64 << 20


async def test_it_dies_while_it_loads(machine):
    async with machine.vllm(
        wait=False, faults={"dies_while_loading": True, "exit_code": 7}
    ) as engine:
        exit_code = await engine.wait_exit()

        assert (exit_code, engine.children()) == (7, [])


async def test_it_is_never_ready(machine):
    async with machine.vllm(wait=False, faults={"never_ready": True, "exit_code": 7}) as engine:
        await engine.wait_line("Starting to load")
        with trio.move_on_after(0.7) as waited:
            await engine.wait_exit()

    assert waited.cancelled_caught


async def test_health_before_it_is_ready(machine):
    async with machine.vllm(wait=False, load_s=600, faults={"health_too_early": True}) as engine:
        await engine.wait_line("Starting to load")
        health = None
        while health is None:
            with contextlib.suppress(OSError):
                health = await engine.get("/health")
        answer = await engine.get("/v1/models")

    assert (health.status, answer.status) == (200, 0)


async def test_a_wrong_name(machine):
    async with machine.vllm(faults={"wrong_model_name": True}) as engine:
        models = (await engine.get("/v1/models")).json()
        answer = await engine.post(PLAIN, {"model": "m", "prompt": "x"})

    assert [row["id"] for row in models["data"]] == ["not-m", "not-n"]
    assert answer.status == 404


async def test_faults_at_a_token(machine):
    async with machine.vllm(faults={"error_event_at_token": 2}) as engine:
        broken = await engine.post(CHAT, engine.chat(stream=True))
        whole = await engine.post(CHAT, engine.chat())
    async with machine.vllm(faults={"stall_at_token": 2}) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stalled:
            with trio.move_on_after(0.4) as waited:
                await stalled.reply()
    async with machine.vllm(faults={"dies_at_token": 2, "exit_code": 9}) as engine:
        cut = await engine.post(CHAT, engine.chat(stream=True))
        exit_code = await engine.wait_exit()

    assert len(broken.events()) == 4
    assert "error" in broken.events()[-2]
    assert whole.status == 500
    assert waited.cancelled_caught
    assert stalled.body.count(b'"content"') == 2
    assert (cut.complete, exit_code) == (False, 9)


async def test_sigterm_ignored_and_a_child_that_stays(machine):
    faults = {"ignores_sigterm": True, "forks_child": True}
    async with machine.vllm(faults=faults) as engine:
        assert len(engine.children()) == 3
        os.kill(engine.process.pid, signal.SIGTERM)
        with trio.move_on_after(0.3) as waited:
            await engine.process.wait()
        engine.process.kill()
        await engine.process.wait()
        os.killpg(engine.process.pid, signal.SIGTERM)
        await until(lambda: len(engine.children()) == 1)

    assert waited.cancelled_caught


async def test_faults_of_the_first_launches_only(machine):
    faults = {"dies_while_loading": True, "first_launches": 2}
    codes = []
    for _ in range(2):
        async with machine.vllm(wait=False, faults=faults) as engine:
            codes.append(await engine.wait_exit())
    async with machine.vllm(faults=faults):
        pass  # this one becomes ready

    assert codes == [1, 1]


async def test_a_slow_hang_up(machine):
    faults = {"slow_disconnect_s": 0.6}
    async with machine.vllm(tokens_per_s=10.0, faults=faults) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body("content")
        began = trio.current_time()
        while b"} 0" not in (await running(engine)):
            pass

    assert trio.current_time() - began >= 0.5

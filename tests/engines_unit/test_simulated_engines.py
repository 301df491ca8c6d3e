"""The families against capyctl's own simulated engines: real processes, rendered command lines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess

import attrs
import pytest
import trio

from capyctl.contracts.engines import EngineBroken, NotReady, ParkRefused
from capyctl.dataplane.routes import ENGINE_PATHS
from capyctl.domain.specs import ModelTask, Residency
from capyctl.domain.units import GIB
from capyctl.engines.activity import Activity, look
from capyctl.engines.env_rules import resolve_env
from capyctl.engines.families import families
from capyctl.engines.readiness import Caller
from capyctl.simulated.checkpoint_writer import write_checkpoint
from capyctl.simulated.document import SimulatedDocument, SimulatedGpu, write_document
from capyctl.simulated.engines import profiles
from capyctl.simulated.usage import Draw, put_draw, start_ticks_of
from tests.engines_unit.scenes import KEYS, control, machine, order, question_for, surroundings

pytestmark = pytest.mark.slow

WITHIN_S = 20.0
TYPED = {"sglang": {"sglang.max_total_tokens": 4096, "sglang.static_pool_bytes": 4 * GIB}}
PARKING = ["vllm", "sglang"]
END_WITHIN_S = 10.0


@attrs.define
class Rig:
    """Starts simulated engines of one temporary machine; ends each by its own group."""

    folder: object
    started: list[subprocess.Popen] = attrs.field(factory=list)

    def start(
        self,
        family,
        *,
        level=None,
        tokens_per_s=0,
        worker_loss_s=4,
        extra=(),
        task=ModelTask.GENERATE,
        **faults,
    ):
        quick = {"load_s": 0, "park_s": 0, "wake_s": 0, "first_token_s": 0}
        quick["worker_loss_s"] = worker_loss_s
        quick["tokens_per_s"] = tokens_per_s
        card = SimulatedGpu(index=0, total_bytes=24 * GIB, name="A card")
        document = write_document(SimulatedDocument(gpus=(card,), ram_bytes=64 * GIB))
        document["engines"] = {**quick, "faults": faults}
        path = self.folder / "machine.json"
        path.write_text(json.dumps(document))
        usage = self.folder / "usage"
        usage.mkdir(exist_ok=True)
        (profile,) = (
            one for one in profiles(document=path, usage_dir=usage) if one.family == family
        )
        form = "gguf" if family == "llamacpp" else "safetensors"
        model = write_checkpoint(self.folder / "model", weights_bytes=GIB, format=form)
        typed = dict(TYPED.get(family, {}))
        if task is ModelTask.TRANSCRIBE:
            self.give_ears(model, typed)
        shape = machine("card")
        gpu = attrs.evolve(shape.gpus[0], uuid=card.uuid)
        place = surroundings(state_dir=str(self.folder), shape=attrs.evolve(shape, gpus=(gpu,)))
        ordered = order(
            family,
            devices=(card.uuid,),
            executable=profile.executable,
            direct=True,
            model_path=str(model),
            env=resolve_env(family, profile, {}),
            parks=level is not None,
            kv_cache_bytes=GIB if family == "vllm" else None,
            request_bytes=4 * GIB if family == "vllm" else None,
            context_length=2048,
            typed=typed,
            extra_args=extra,
            task=task,
        )
        residency = {1: Residency.HOST_BACKED, 2: Residency.DEEP}.get(level)
        ordered = attrs.evolve(ordered, residency=residency or Residency.RESTART_ONLY)
        known = families(place)[family]
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        rendered = known.render(ordered, port=port, keys=KEYS)
        with (self.folder / "output").open("w") as output:
            engine = subprocess.Popen(
                rendered.argv,
                env=rendered.env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.started.append(engine)
        admin = KEYS.admin if known.takes_key else None
        at = control(port, level=level, admin_key=admin)
        at = attrs.evolve(at, model_path=str(model), task=task)
        return known, ordered, at, engine

    def give_ears(self, model, typed):
        if model.suffix == ".gguf":
            (model.parent / "mmproj.gguf").write_bytes(b"GGUF")
            typed["llamacpp.mmproj_file"] = "mmproj.gguf"
            return
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"audio_config": {}}))

    def output(self):
        return (self.folder / "output").read_text()

    def end(self):
        for engine in self.started:
            if engine.poll() is None:
                os.killpg(engine.pid, signal.SIGKILL)
            engine.wait(END_WITHIN_S)


@pytest.fixture
def rig(tmp_path):
    made = Rig(folder=tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("family", PARKING)
async def test_it_parks_and_wakes_again_and_again(rig, family, level):
    known, ordered, at, _ = rig.start(family, level=level)
    with trio.fail_after(WITHIN_S):
        canary = await known.wait_ready(at, ordered)
        assert canary
        for _ in range(3):
            await known.park(at)
            await known.wake(at, canary=canary)
        sample = await known.sample(at)
        assert (sample.running, sample.waiting) == (0, 0)
        assert await look(known, at) is Activity.IDLE


TASKS = [
    *((family, task) for family in ("vllm", "sglang", "llamacpp") for task in ModelTask),
    ("tensorfold", ModelTask.GENERATE),
]


@pytest.mark.parametrize(("family", "task"), TASKS)
async def test_it_becomes_ready_for_its_task_and_has_its_routes_and_no_others(rig, family, task):
    known, ordered, at, _ = rig.start(family, task=task)
    with trio.fail_after(WITHIN_S):
        assert await known.wait_ready(at, ordered) is None
        caller = Caller(control=at)
        answers = {
            path: await caller.put(question_for(path), within_s=WITHIN_S) for path in ENGINE_PATHS
        }
        assert await known.wait_ready(at, None) is None
    answered = {path for path, reply in answers.items() if reply.status == 200}
    assert answered >= known.routes(task)
    if task in (ModelTask.GENERATE, ModelTask.TRANSCRIBE):
        assert answered == known.routes(task)


@pytest.mark.parametrize("task", [ModelTask.EMBED, ModelTask.RERANK, ModelTask.TRANSCRIBE])
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("family", PARKING)
async def test_models_of_other_tasks_park_and_wake(rig, family, level, task):
    known, ordered, at, _ = rig.start(family, level=level, task=task)
    with trio.fail_after(WITHIN_S):
        canary = await known.wait_ready(at, ordered)
        await known.park(at)
        await known.wake(at, canary=canary)


@pytest.mark.parametrize("task", [ModelTask.EMBED, ModelTask.RERANK, ModelTask.TRANSCRIBE])
@pytest.mark.parametrize("family", PARKING)
async def test_garbage_after_a_wake_is_noticed_whatever_the_task(rig, family, task):
    known, ordered, at, _ = rig.start(family, level=2, task=task, gibberish_after_wake=True)
    with trio.fail_after(WITHIN_S):
        canary = await known.wait_ready(at, ordered)
        await known.park(at)
        with pytest.raises(EngineBroken) as caught:
            await known.wake(at, canary=canary)
    assert caught.value.code == "wake_mismatch"


@pytest.mark.parametrize("family", PARKING)
async def test_a_model_that_is_not_for_text_is_told_what_to_state(rig, family):
    """It was deployed as one that generates, but its engine was told otherwise."""
    extra = {"vllm": ("--runner", "pooling"), "sglang": ("--is-embedding",)}
    known, ordered, at, _ = rig.start(family, extra=extra[family])
    with trio.fail_after(WITHIN_S), pytest.raises(NotReady, match=r"engine_config\.task"):
        await known.wait_ready(at, ordered)


async def test_a_speculative_sglang_parks_its_cache_alone(rig):
    extra = ("--speculative-algorithm", "EAGLE")
    sglang, ordered, at, engine = rig.start("sglang", level=2, extra=extra)
    with trio.fail_after(WITHIN_S):
        canary = await sglang.wait_ready(at, ordered)
        await sglang.park(at)
        await sglang.wake(at, canary=canary)
    assert engine.poll() is None
    assert "update_weights_from_disk" not in rig.output()


async def test_a_parked_sglang_is_asked_for_no_health(rig):
    sglang, ordered, at, _engine = rig.start("sglang", level=2)
    with trio.fail_after(WITHIN_S):
        canary = await sglang.wait_ready(at, ordered)
        await sglang.park(at)
        while_parked = len(rig.output())
        await sglang.sample(at)
        await sglang.wake(at, canary=canary)
        assert "/health" not in rig.output()[while_parked:]


async def test_a_stray_health_check_does_a_parked_sglang_no_harm(rig):
    """It is started so that `/health` generates nothing, for whoever may ask."""
    sglang, ordered, at, engine = rig.start("sglang", level=2)
    with trio.fail_after(WITHIN_S):
        canary = await sglang.wait_ready(at, ordered)
        await sglang.park(at)
        assert (await Caller(control=at).get("/health")).status == 200
        await sglang.wake(at, canary=canary)
    assert engine.poll() is None


@pytest.mark.parametrize("family", PARKING)
async def test_it_is_parked_only_once_its_last_request_is_over(rig, family, nursery):
    """The trap is armed: a release while something runs kills SGLang, and vLLM would wait."""
    known, ordered, at, engine = rig.start(family, level=2, tokens_per_s=20)
    asked = {"model": "m", "prompt": "x", "max_tokens": 24, "stream": False}
    answers = []

    async def ask():
        caller = Caller(control=at)
        answers.append(await caller.post("/v1/completions", asked, within_s=WITHIN_S))

    with trio.fail_after(WITHIN_S):
        await known.wait_ready(at, ordered)
        nursery.start_soon(ask)
        while (await known.sample(at)).running == 0:  # noqa: ASYNC110
            await trio.sleep(0.01)
        await known.park(at)
    (answer,) = answers
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert engine.poll() is None


async def test_a_tensorfold_becomes_ready(rig):
    tensorfold, ordered, at, _ = rig.start("tensorfold")
    with trio.fail_after(WITHIN_S):
        assert await tensorfold.wait_ready(at, ordered) is None
        sample = await tensorfold.sample(at)
        assert (sample.running, sample.waiting, sample.kv_usage_ratio) == (0, 0, 0)
        with pytest.raises(ParkRefused):
            await tensorfold.park(at)


async def test_a_llama_server_becomes_ready(rig):
    llama, ordered, at, _ = rig.start("llamacpp")
    with trio.fail_after(WITHIN_S):
        assert await llama.wait_ready(at, ordered) is None
        sample = await llama.sample(at)
    assert (sample.running, sample.waiting, sample.kv_usage_ratio) == (0, 0, 0)


@pytest.mark.parametrize("family", ["vllm", "llamacpp", "sglang", "tensorfold"])
async def test_another_served_name_is_noticed(rig, family):
    known, ordered, at, _ = rig.start(family, wrong_model_name=True)
    with trio.fail_after(WITHIN_S), pytest.raises(NotReady) as caught:
        await known.wait_ready(at, ordered)
    assert caught.value.code == "effective_args_mismatch"


async def test_a_health_that_comes_too_early_is_not_believed(rig):
    vllm, ordered, at, _ = rig.start("vllm", health_too_early=True, never_ready=True)
    with trio.move_on_after(1.0) as patience:
        await vllm.wait_ready(at, ordered)
    assert patience.cancelled_caught


@pytest.mark.parametrize("family", PARKING)
async def test_a_refused_park_leaves_it_serving(rig, family):
    known, ordered, at, _ = rig.start(family, level=2, refuses_park=True)
    with trio.fail_after(WITHIN_S):
        await known.wait_ready(at, ordered)
        with pytest.raises(ParkRefused):
            await known.park(at)
        assert await look(known, at) is Activity.IDLE


@pytest.mark.parametrize(
    ("fault", "code"),
    [("gibberish_after_wake", "wake_mismatch"), ("dies_on_wake", "wake_failed")],
)
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("family", PARKING)
async def test_a_bad_wake_is_told(rig, family, level, fault, code):
    known, ordered, at, _ = rig.start(family, level=level, **{fault: True})
    with trio.fail_after(WITHIN_S):
        canary = await known.wait_ready(at, ordered)
        await known.park(at)
        with pytest.raises(EngineBroken) as caught:
            await known.wake(at, canary=canary)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("family", "exit_code", "words"),
    [("sglang", -signal.SIGKILL, "CUresult error: 2"), ("vllm", 0, "CUDA out of memory")],
)
async def test_a_wake_without_memory_is_told_and_asked_for_once(rig, family, exit_code, words):
    """The trap is armed: a stranger took the memory, and the engine dies of its own wake."""
    known, ordered, at, engine = rig.start(family, level=2, worker_loss_s=0.2)
    with trio.fail_after(WITHIN_S):
        canary = await known.wait_ready(at, ordered)
        await known.park(at)
        stranger = Draw(
            pid=os.getpid(),
            start_ticks=start_ticks_of(os.getpid()),
            gpu="gpu0",
            bytes=23 * GIB,
            ram_bytes=0,
        )
        room = {"gpu0": 24 * GIB, "system": 64 * GIB}
        put_draw(rig.folder / "usage", stranger, room=room, unified=False)
        with pytest.raises(EngineBroken) as caught:
            await known.wake(at, canary=canary)
        await trio.to_thread.run_sync(engine.wait)
    assert (caught.value.code, engine.returncode) == ("wake_failed", exit_code)
    assert rig.output().count(words) == 1


async def test_an_engine_that_died_is_gone(rig):
    vllm, ordered, at, engine = rig.start("vllm", level=1)
    with trio.fail_after(WITHIN_S):
        await vllm.wait_ready(at, ordered)
        os.killpg(engine.pid, signal.SIGKILL)
        await trio.to_thread.run_sync(engine.wait)
        assert await look(vllm, at) is Activity.GONE
        assert await vllm.sample(at) is None

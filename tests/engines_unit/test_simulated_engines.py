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
from capyctl.domain.units import GIB
from capyctl.engines.activity import Activity, look
from capyctl.engines.env_rules import resolve_env
from capyctl.engines.families import families
from capyctl.simulated.checkpoint_writer import write_checkpoint
from capyctl.simulated.document import SimulatedDocument, SimulatedGpu, write_document
from capyctl.simulated.engines import profiles
from tests.engines_unit.scenes import KEYS, control, machine, order, surroundings

pytestmark = pytest.mark.slow

WITHIN_S = 20.0
END_WITHIN_S = 10.0


@attrs.define
class Rig:
    """Starts simulated engines of one temporary machine; ends each by its own group."""

    folder: object
    started: list[subprocess.Popen] = attrs.field(factory=list)

    def start(self, family, *, level=None, **faults):
        quick = {"load_s": 0, "park_s": 0, "wake_s": 0, "first_token_s": 0, "tokens_per_s": 0}
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
        shape = machine("card")
        gpu = attrs.evolve(shape.gpus[0], uuid=card.uuid)
        place = surroundings(state_dir=str(self.folder), shape=attrs.evolve(shape, gpus=(gpu,)))
        ordered = order(
            family,
            devices=(card.uuid,),
            executable=profile.executable,
            model_path=str(model),
            env=resolve_env(family, profile, {}),
            parks=level is not None,
            kv_cache_bytes=GIB if family == "vllm" else None,
            request_bytes=4 * GIB if family == "vllm" else None,
            context_length=2048,
        )
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
        at = control(port, level=level, admin_key=KEYS.admin if family == "vllm" else None)
        return known, ordered, at, engine

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
async def test_a_vllm_parks_and_wakes_again_and_again(rig, level):
    vllm, ordered, at, _ = rig.start("vllm", level=level)
    with trio.fail_after(WITHIN_S):
        canary = await vllm.wait_ready(at, ordered)
        assert canary
        for _ in range(2):
            await vllm.park(at)
            await vllm.wake(at, canary=canary)
        sample = await vllm.sample(at)
        assert (sample.running, sample.waiting) == (0, 0)
        assert await look(vllm, at) is Activity.IDLE


async def test_a_llama_server_becomes_ready(rig):
    llama, ordered, at, _ = rig.start("llamacpp")
    with trio.fail_after(WITHIN_S):
        assert await llama.wait_ready(at, ordered) is None
        sample = await llama.sample(at)
    assert (sample.running, sample.waiting, sample.kv_usage_ratio) == (0, 0, 0)


@pytest.mark.parametrize("family", ["vllm", "llamacpp"])
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


async def test_a_refused_park_leaves_it_serving(rig):
    vllm, ordered, at, _ = rig.start("vllm", level=2, refuses_park=True)
    with trio.fail_after(WITHIN_S):
        await vllm.wait_ready(at, ordered)
        with pytest.raises(ParkRefused):
            await vllm.park(at)
        assert await look(vllm, at) is Activity.IDLE


@pytest.mark.parametrize(
    ("fault", "code"),
    [("gibberish_after_wake", "wake_mismatch"), ("dies_on_wake", "wake_failed")],
)
@pytest.mark.parametrize("level", [1, 2])
async def test_a_bad_wake_is_told(rig, level, fault, code):
    vllm, ordered, at, _ = rig.start("vllm", level=level, **{fault: True})
    with trio.fail_after(WITHIN_S):
        canary = await vllm.wait_ready(at, ordered)
        await vllm.park(at)
        with pytest.raises(EngineBroken) as caught:
            await vllm.wake(at, canary=canary)
    assert caught.value.code == code


async def test_an_engine_that_died_is_gone(rig):
    vllm, ordered, at, engine = rig.start("vllm", level=1)
    with trio.fail_after(WITHIN_S):
        await vllm.wait_ready(at, ordered)
        os.killpg(engine.pid, signal.SIGKILL)
        await trio.to_thread.run_sync(engine.wait)
        assert await look(vllm, at) is Activity.GONE
        assert await vllm.sample(at) is None

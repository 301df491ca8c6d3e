"""Orders, machines and scripted vLLM engines for the tests of engine families."""

from __future__ import annotations

from typing import Any

import attrs

from capyctl.contracts.engines import Control, LaunchKeys
from capyctl.domain.devices import Gpu, MachineShape, MemoryDomain, MemoryKind
from capyctl.domain.ids import DeploymentId, DomainName, GpuId, HostId, InstanceId, LaunchId
from capyctl.domain.launches import Endpoint, LaunchOrder
from capyctl.domain.specs import EngineSettings, Residency
from capyctl.domain.units import GIB
from capyctl.engines.questions import PATH_OF_TASK, Question, ask
from capyctl.engines.surroundings import Surroundings
from tests.engines_unit.fake_server import Asked, Told

LAUNCH = LaunchId("01JLAUNCH00000000000000000")
DEPLOYMENT = DeploymentId("01JDEPLOY00000000000000000")
UUID = "GPU-11111111-2222-3333-4444-555555555555"
KEYS = LaunchKeys(inference="inference-key", admin="admin-key")


def domain(name: str, kind: MemoryKind, total_bytes: int, gpu: str | None = None) -> MemoryDomain:
    return MemoryDomain(
        name=DomainName(name),
        kind=kind,
        total_bytes=total_bytes,
        managed_limit_bytes=total_bytes // 2,
        free_reserve_bytes=total_bytes // 5,
        parked_limit_bytes=total_bytes // 4,
        gpu=None if gpu is None else GpuId(gpu),
    )


def machine(kind: str = "card") -> MachineShape:
    """``card``: 24 GiB beside 64 GiB of RAM; ``unified``: 128 GiB; ``bare``: RAM alone."""
    host = HostId("here")
    ram = domain("system", MemoryKind.DISTINCT, 64 * GIB)
    if kind == "bare":
        return MachineShape(host=host, gpus=(), domains=(ram,))
    if kind == "unified":
        pool = domain("unified", MemoryKind.UNIFIED, 128 * GIB, "gpu0")
        gpu = Gpu(id=GpuId("gpu0"), uuid=UUID, name="GB10", total_bytes=128 * GIB, domain=pool.name)
        return MachineShape(host=host, gpus=(gpu,), domains=(pool,))
    card = domain("gpu0", MemoryKind.DEVICE, 24 * GIB, "gpu0")
    gpu = Gpu(id=GpuId("gpu0"), uuid=UUID, name="A card", total_bytes=24 * GIB, domain=card.name)
    return MachineShape(host=host, gpus=(gpu,), domains=(ram, card))


def surroundings(kind: str = "card", **changes: Any) -> Surroundings:
    made = Surroundings(
        state_dir="/var/lib/capyctl",
        shape=machine(kind),
        available_bytes=lambda: 40 * GIB,
        cpu_count=16,
    )
    return attrs.evolve(made, **changes)


def order(
    family: str = "vllm", *, devices: tuple[str, ...] = (UUID,), **settings: Any
) -> LaunchOrder:
    executable = {
        "vllm": "/opt/vllm/bin/vllm",
        "llamacpp": "/opt/llama/bin/llama-server",
        "sglang": "/opt/sglang/bin/python3",
        "tensorfold": "/opt/tensorfold/bin/tensorfold",
    }[family]
    engine = EngineSettings(
        profile=family,
        profile_revision=1,
        family=family,
        executable=(executable,),
        model_path="/models/m/m.gguf" if family == "llamacpp" else "/models/m",
        served_name="m",
    )
    return LaunchOrder(
        launch=LAUNCH,
        instance=InstanceId(DEPLOYMENT, 0),
        engine=attrs.evolve(engine, **settings),
        residency=Residency.RESTART_ONLY,
        device_uuids=devices,
    )


def control(port: int, *, level: int | None = None, admin_key: str | None = "admin-key") -> Control:
    return Control(
        endpoint=Endpoint(host="127.0.0.1", port=port, key="inference-key", served_name="m"),
        admin_key=admin_key,
        model_path="/models/m",
        level=level,
    )


def question_for(path: str) -> Question:
    """A small request that an engine with that path answers with 200."""
    if path in PATH_OF_TASK.values():
        return ask(path, "m", "a b", 1)
    fields = {
        "/v1/completions": {"prompt": "x", "max_tokens": 1},
        "/v1/score": {"text_1": "x", "text_2": ["y"]},
        "/v1/responses": {"input": "x", "max_output_tokens": 1},
        "/tokenize": {"prompt": "x", "content": "x"},
    }
    messages = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    return Question(path=path, fields={"model": "m", **fields.get(path, messages)})


@attrs.define(slots=False)
class ScriptedVllm:
    """vLLM's control surface as 0.32 answers it; ``overrides`` replace single answers."""

    asleep: set[str] = attrs.field(factory=set)
    level: int = 0
    running: int = 0
    garbage: bool = False
    """Weights were dropped and not read again."""
    text: str = "one two three"
    ids: tuple[int, ...] | None = (11, 12, 13)
    terse: bool = False
    """An older build: empty bodies."""
    overrides: dict[str, Told] = attrs.field(factory=dict)

    def __call__(self, asked: Asked) -> Told:
        key = f"{asked.method} {asked.path}"
        tags = [v for k, v in asked.query if k == "tags"]
        for name in (f"{key}?tags={tags[0]}" if tags else key, key):
            if name in self.overrides:
                return self.overrides[name]
        answer = getattr(self, "_" + asked.path.strip("/").replace("/", "_"), None)
        return Told(status=404) if answer is None else answer(asked)

    def _health(self, asked: Asked) -> Told:
        return Told()

    def _load(self, asked: Asked) -> Told:
        is_admin = asked.headers.get("authorization") == "Bearer admin-key"
        return Told(body={"server_load": 0}) if is_admin else Told(status=401)

    def _v1_models(self, asked: Asked) -> Told:
        return Told(body={"object": "list", "data": [{"id": "m"}]})

    def _v1_chat_completions(self, asked: Asked) -> Told:
        text = "!!!!" if self.garbage else self.text
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
        if self.ids is not None and asked.json().get("return_token_ids"):
            choice["token_ids"] = [0] if self.garbage else list(self.ids)
        return Told(body={"choices": [choice]})

    def _metrics(self, asked: Asked) -> Told:
        lines = [
            "# HELP vllm:num_requests_running Number of requests",
            "# TYPE vllm:num_requests_running gauge",
            f'vllm:num_requests_running{{engine="0",model_name="m"}} {self.running}.0',
            'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0',
            'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25',
        ]
        return Told(body="\n".join(lines).encode())

    def _is_sleeping(self, asked: Asked) -> Told:
        return Told(body={"is_sleeping": bool(self.asleep)})

    def _sleep(self, asked: Asked) -> Told:
        self.level = int(dict(asked.query).get("level", "1"))
        self.asleep = {"weights", "kv_cache"}
        self.garbage = self.level == 2
        return self._told({"status": "sleeping", "level": self.level})

    def _wake_up(self, asked: Asked) -> Told:
        tags = [v for k, v in asked.query if k == "tags"]
        self.asleep -= set(tags) if tags else set(self.asleep)
        return self._told({"status": "sleeping" if self.asleep else "awake", "tags": tags or None})

    def _collective_rpc(self, asked: Asked) -> Told:
        assert asked.json() == {"method": "reload_weights"}
        assert "weights" not in self.asleep
        self.garbage = False
        return Told(body={"results": [None]})

    def _reset_prefix_cache(self, asked: Asked) -> Told:
        return self._told({"success": True})

    def _told(self, words: dict[str, Any]) -> Told:
        return Told() if self.terse else Told(body=words)

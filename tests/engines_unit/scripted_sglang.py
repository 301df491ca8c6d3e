"""SGLang's control surface as 0.5.23 answers it, with every misuse fatal."""

from __future__ import annotations

from typing import Any

import attrs

from tests.engines_unit.fake_server import Asked, Told


@attrs.define(slots=False)
class ScriptedSglang:
    """Once ``dead`` it answers nothing; ``overrides`` replace single answers."""

    keeps_copy: bool = False
    running: int = 0
    released: set[str] = attrs.field(factory=set)
    paused: bool = False
    garbage: bool = False
    dead: str = ""
    """What was done to it that killed it."""
    text: str = "one two three"
    settings: dict[str, Any] = attrs.field(factory=dict)
    older: bool = False
    """A release without `/ready` and `/ping`."""
    overrides: dict[str, Told] = attrs.field(factory=dict)

    def __call__(self, asked: Asked) -> Told:
        key = f"{asked.method} {asked.path}"
        tags = asked.json().get("tags") if asked.body else None
        answer = getattr(self, "_" + asked.path.strip("/").replace("/", "_"), None)
        for name in (f"{key} {','.join(tags or ())}", key):
            if name in self.overrides:
                return self.overrides[name]
        told = Told(status=404) if answer is None else answer(asked)
        return Told(hang_up=True) if self.dead else told

    def _health(self, asked: Asked) -> Told:
        if self.paused or self.released:
            self.dead = "a health check while parked"
        return Told()

    def _ping(self, asked: Asked) -> Told:
        return Told(status=404 if self.older else 200)

    def _ready(self, asked: Asked) -> Told:
        return Told(status=404 if self.older else 503 if self.paused else 200)

    def _v1_models(self, asked: Asked) -> Told:
        return Told(body={"object": "list", "data": [{"id": "m"}]})

    def _v1_loads(self, asked: Asked) -> Told:
        return Told(body={"loads": [{"max_running_requests": 48}]})

    def _v1_chat_completions(self, asked: Asked) -> Told:
        if self.released:
            self.dead = "a request while parked"
        text = "!!!!" if self.garbage else self.text
        return Told(body={"choices": [{"message": {"role": "assistant", "content": text}}]})

    def _metrics(self, asked: Asked) -> Told:
        lines = [
            f'sglang:num_running_reqs{{model_name="m"}} {self.running}.0',
            'sglang:num_queue_reqs{model_name="m"} 0.0',
            'sglang:token_usage{model_name="m"} 0.25',
        ]
        return Told(body="\n".join(lines).encode())

    def _server_info(self, asked: Asked) -> Told:
        found = {
            "enable_memory_saver": True,
            "enable_weights_cpu_backup": self.keeps_copy,
            "speculative_algorithm": None,
            "weight_cache_mode": "off",
            "api_key": "inference-key",
        }
        return Told(body=found | self.settings)

    def _pause_generation(self, asked: Asked) -> Told:
        assert asked.json() == {"mode": "abort"}
        self.paused = True
        return Told(body={"status": "ok"})

    def _continue_generation(self, asked: Asked) -> Told:
        self.paused = False
        return Told(body={"status": "ok"})

    def _release_memory_occupation(self, asked: Asked) -> Told:
        if self.running or not self.paused:
            self.dead = "a release while busy"
        self.released |= set(asked.json()["tags"])
        self.garbage = "weights" in self.released and not self.keeps_copy
        return Told(body=b"null")

    def _resume_memory_occupation(self, asked: Asked) -> Told:
        for tag in asked.json()["tags"]:
            if tag not in self.released:
                self.dead = f"KeyError: {tag}"
            self.released.discard(tag)
        return Told(body=b"null")

    def _update_weights_from_disk(self, asked: Asked) -> Told:
        assert asked.json() == {"model_path": "/models/m"}
        if "weights" in self.released:
            self.dead = "a reload onto memory that is gone"
        self.garbage = False
        return Told(body={"success": True, "message": "done", "num_paused_requests": 0})

    def _flush_cache(self, asked: Asked) -> Told:
        return Told(body=b"Cache flushed.\n")

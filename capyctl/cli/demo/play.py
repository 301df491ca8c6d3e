"""The play: three models that share one card, through the same APIs that every client uses."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import attrs

from capyctl.cli.demo.asking import Answered, ask_model
from capyctl.cli.demo.screen import GIB, Screen, memory_bar, shown_s
from capyctl.cli.demo.stage import Stage
from capyctl.cli.demo.watch import Watch
from capyctl.cli.failure import CommandFailed
from capyctl.cli.journal import Step
from capyctl.cli.sending import read_snapshot, send_change
from capyctl.cli.surroundings import Surroundings
from capyctl.client.requests import PREFIX
from capyctl.domain.units import gib

CARD_BYTES = 24 * GIB
MODELS = {"poet": 10 * GIB, "coder": 12 * GIB, "guide": 8 * GIB}
"""Weights. With its KV cache each needs well over half of the card, so that one is awake."""
MEASURE_S_MAX = 20.0
STATE_S_MAX = 30.0


@attrs.define(eq=False)
class Play:
    """One performance on a stage that is up."""

    here: Surroundings
    stage: Stage
    screen: Screen
    _ids: dict[str, str] = attrs.field(init=False, factory=dict)
    _watch: Watch = attrs.field(init=False)
    _changes_count: int = attrs.field(init=False, default=0)

    def run(self) -> None:
        """From three files to a switch and back.

        Raises:
            CommandFailed: something did not come about in time.
        """
        self._write_models()
        self._deploy()
        try:
            started_s = self._start()
            self._answer()
            self._park()
            woken = self._wake()
            switched = self._switch()
            back = self._back()
            self._sum_up(started_s, woken, switched, back)
        finally:
            self._watch.end()

    def _write_models(self) -> None:
        from capyctl.simulated.checkpoint_writer import write_checkpoint

        for seed, (name, weights_bytes) in enumerate(MODELS.items()):
            folder = self.stage.models_root / name
            write_checkpoint(folder, weights_bytes=weights_bytes, seed=seed)
        sizes = ", ".join(f"{name} {gib(size)}" for name, size in MODELS.items())
        self.screen.happened(f"three checkpoints: {sizes} (sparse files that take no room)")

    def _deploy(self) -> None:
        for name in MODELS:
            config = {"name": name, "engine": "vllm", "model": name}
            receipt = self._change("/deployments", {"config": config, "activate": False})
            self._ids[name] = receipt["deployment_id"]
        self._wait_until_measured()
        self.screen.happened("three deployments; the card holds one of them awake")
        self.screen.line("each letter is a GiB of the card: capitals are awake, small ones parked")
        by_id = {id: name for name, id in self._ids.items()}
        self._watch = Watch(self.stage.client, by_id, self._moved)
        self._watch.start(str(read_snapshot(self.stage.client)["cursor"]))

    def _start(self) -> float:
        self.screen.heading("1. A start, as `capyctl start deployment poet --wait` does it")
        self._act("start", "poet")
        took_s = self._watch.wait_for("poet", "ready", STATE_S_MAX)
        self.screen.line(f"ready after {shown_s(took_s)}")
        return took_s

    def _answer(self) -> None:
        self.screen.heading("2. An answer, streamed by the OpenAI API")
        self._ask("poet", "Tell me about the rain.")

    def _park(self) -> None:
        self.screen.heading("3. A park: the engine lives on, its GPU memory is free")
        self._act("park", "poet")
        self._watch.wait_for("poet", "parked", STATE_S_MAX)

    def _wake(self) -> Answered:
        self.screen.heading("4. A request for a parked model wakes it")
        return self._ask("poet", "And about the snow?")

    def _switch(self) -> Answered:
        self.screen.heading(
            "5. A request for a model without room: a switch, once poet had 2 s for more"
        )
        return self._ask("coder", "Write a function that adds two numbers.")

    def _back(self) -> Answered:
        self.screen.heading("6. A third model, and back to the first: it was parked, so it wakes")
        self._ask("guide", "Where is the station?")
        return self._ask("poet", "And about the wind?")

    def _sum_up(
        self, started_s: float, woken: Answered, switched: Answered, back: Answered
    ) -> None:
        self.screen.heading("What it took")
        rows = (
            ("a start", started_s, "engine launched, weights loaded"),
            ("a wake, to the first text", woken.first_s, "weights copied back"),
            ("a switch, to the first text", switched.first_s, "one parked, another started"),
            ("a switch back, to the first text", back.first_s, "one parked, another woken"),
        )
        for what, took_s, why in rows:
            self.screen.line(f"{what:<33} {shown_s(took_s):>7}   {why}")

    def _ask(self, model: str, question: str) -> Answered:
        self.screen.happened(f"{model} is asked: {question}")
        key = self.stage.client.role.api_key
        answered = ask_model(self.stage.inference, key, model, question, self.screen.piece)
        self.screen.end_piece()
        rate = answered.pieces_count / max(0.001, answered.total_s - answered.first_s)
        self.screen.line(
            f"first text after {shown_s(answered.first_s)}, then {rate:.0f} tokens a second"
        )
        return answered

    def _act(self, action: str, name: str) -> dict[str, Any]:
        body = {
            "action": action,
            "expected_revision": 1,
            "deadline_ms": self.here.wall_ms() + 60_000,
        }
        return self._change(f"/deployments/{self._ids[name]}/actions", body)

    def _change(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._changes_count += 1
        step = Step(
            key=f"demo-{self._changes_count}",
            method="POST",
            path=f"{PREFIX}{path}",
            body=json.dumps(body),
        )
        return send_change(self.stage.client, step)

    def _wait_until_measured(self) -> None:
        end_s = self.here.monotonic_s() + MEASURE_S_MAX
        while True:
            rows = read_snapshot(self.stage.client)["deployments"]
            states = [row["checkpoint_digest"]["state"] for row in rows]
            if all(state == "recorded" for state in states):
                return
            if self.here.monotonic_s() >= end_s:
                raise CommandFailed("demo_failed", f"checkpoints are {', '.join(states)}")
            time.sleep(0.05)

    def _moved(self, name: str, before: str, after: str) -> None:
        bar = memory_bar(held_by_model(self.stage.usage_dir), self._watch.awake(), CARD_BYTES)
        self.screen.moved(name, before, after, bar)


def held_by_model(usage_dir: Path) -> dict[str, int]:
    """What each model's engine draws of the simulated card now, by served name."""
    from capyctl.simulated.usage import read_draws

    found: dict[str, int] = {}
    for draw in read_draws(usage_dir):
        name = _served_name(draw.pid)
        if name is not None and draw.gpu is not None:
            found[name] = found.get(name, 0) + draw.bytes
    return found


def _served_name(pid: int) -> str | None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return words[words.index("--served-model-name") + 1]
    except (OSError, ValueError, IndexError):
        return None

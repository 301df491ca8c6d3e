"""`demo`: all of it at once on a simulated machine, in under a minute, leaving nothing behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from capyctl.cli.call import Call
from capyctl.cli.demo.screen import Screen
from capyctl.cli.demo.stage import Stage, find_stage, open_stage
from capyctl.cli.failure import CommandFailed


def demo(call: Call) -> int:
    """`demo`"""
    if call.options.end is not None:
        return _end(call, Path(call.options.end))
    from capyctl.cli.demo.play import Play

    screen = Screen(call.here)
    stage = open_stage()
    is_kept = False
    with _ctrl_c_for_sigterm():
        try:
            screen.plain(
                "capyctl on a simulated machine: one card of 24 GiB, 256 GiB of RAM, no GPU.\n"
            )
            screen.happened(f"capyctl starts; everything of it lies in {stage.folder}")
            stage.start(call.here.environ)
            role = stage.client.role
            screen.happened(
                f"it serves inference on {stage.inference}, management on {role.address}"
            )
            Play(here=call.here, stage=stage, screen=screen).run()
            is_kept = bool(call.options.keep)
        except KeyboardInterrupt:
            raise CommandFailed("interrupted", "the demo was ended before its end") from None
        finally:
            if not is_kept:
                _leave_nothing(stage, screen)
    if is_kept:
        screen.plain(_how_to_talk(stage))
    return 0


def _end(call: Call, folder: Path) -> int:
    stage = find_stage(folder)
    with _without_interrupts():
        is_clean = stage.end()
    if not is_clean:
        raise CommandFailed("demo_failed", f"something of {stage.folder} could not be removed")
    call.show({"ended": str(stage.folder)}, f"Ended the demo of {stage.folder}")
    return 0


def _leave_nothing(stage: Stage, screen: Screen) -> None:
    with _without_interrupts():
        is_clean = stage.end()
    if is_clean:
        screen.heading("All of it has ended; nothing was left behind.")
    else:
        screen.heading(f"Something of it is left: see {stage.folder}")


@contextlib.contextmanager
def _ctrl_c_for_sigterm() -> Iterator[None]:
    """A SIGTERM ends the demo as Ctrl-C does: with its engines and its folder."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Nothing cuts the cleaning up short."""
    held = {number: signal.signal(number, signal.SIG_IGN) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, before in held.items():
            signal.signal(number, before)


_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def _how_to_talk(stage: Stage) -> str:
    """What to type at a demo that goes on."""
    command = _own_command()
    state = shlex.quote(str(stage.state_root))
    url = f"http://{stage.inference}/v1"
    body = '{"model": "poet", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'
    return f"""
It goes on running, with the models poet, coder and guide. Its key:
  KEY=$(sed -n 's/^api_key: //p' {state}/identity/credentials)

With curl:
  curl -N {url}/chat/completions -H "Authorization: Bearer $KEY" \\
    -H 'Content-Type: application/json' -d '{body}'

With the openai package (`pip install openai`), KEY being that key:
  from openai import OpenAI
  client = OpenAI(base_url="{url}", api_key=KEY)
  answer = client.chat.completions.create(
      model="coder", messages=[{{"role": "user", "content": "Hello"}}])
  print(answer.choices[0].message.content)

With the command:
  {command} --state-dir {state} list deployments

End it, engines and files included:
  {command} demo --end {shlex.quote(str(stage.folder))}"""


def _own_command() -> str:
    name = sys.argv[0]
    if os.path.basename(name) == "capyctl":
        return shlex.quote(name)
    return f"{shlex.quote(sys.executable)} -m capyctl.cli.main"

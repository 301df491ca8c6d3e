"""A role of its own for the demo: a folder, free ports, and a process on a simulated machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import capyctl
from capyctl.cli.client import Client
from capyctl.cli.demo.leftovers import end_all
from capyctl.cli.failure import CommandFailed
from capyctl.cli.role import Role, parse_address, read_credentials
from capyctl.client.requests import PREFIX, Change

START_S_MAX = 45.0
STOP_S_MAX = 8.0
POLL_S = 0.05
LOG_LINES_SHOWN = 15
ENGINE_PORTS = 16
PORT_MIN = 20_000
PORTS = 12_000
PORT_TRIES_MAX = 200
MARK = "demo.json"
"""Names the folder as a demo's, so that `demo --end` removes nothing else."""
SIMULATED = {
    "gpus": 1,
    "memory": "24GiB",
    "ram": "256GiB",
    "engines": {
        "load_s": 1.2,
        "park_s": 0.2,
        "wake_s": 0.3,
        "first_token_s": 0.03,
        "tokens_per_s": 80,
        "reply_tokens": 48,
    },
}
"""Times as they are felt on a small scale; a real load takes minutes, a real wake seconds."""


class Stage:
    """The role's folder and process. Build one with `open_stage` or `find_stage`."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder = folder
        self.state_root = folder / "state"
        self.models_root = folder / "models"
        self.usage_dir = self.state_root / "simulated"
        self.inference = ""
        self._process = process
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def start(self, environ: Mapping[str, str], command: list[str] | None = None) -> None:
        """Start the role and return when its management API answers.

        Raises:
            CommandFailed: ``demo_failed``: it ended, or did not answer within 45 s.
        """
        for folder in (self.state_root, self.models_root):
            folder.mkdir(mode=0o700)
        machine = self.folder / "machine.json"
        machine.write_text(json.dumps(SIMULATED, indent=2))
        self.inference = f"127.0.0.1:{free_ports(1)}"
        first = free_ports(ENGINE_PORTS)
        words = command or [sys.executable, "-m", "capyctl.cli.main"]
        with (self.folder / "capyctl.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(*words, "start", "standalone", "--simulate", str(machine)),
                    *("--state-dir", str(self.state_root), "--listen", self.inference),
                    *("--management-listen", "127.0.0.1:0"),
                    *("--models-root", str(self.models_root)),
                    *("--engine-ports", f"{first}-{first + ENGINE_PORTS - 1}", "--format", "json"),
                ],
                env=_closed(environ, self.folder),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for the demo, which ends the role itself.
                start_new_session=True,
            )
        mark = {"pid": self._process.pid, "inference": self.inference}
        (self.folder / MARK).write_text(json.dumps(mark))
        self._wait_until_up()

    def connect(self) -> None:
        """Find the role's address and token. Raises CommandFailed."""
        text = (self.state_root / "run" / "management-address").read_text()
        secrets = read_credentials(self.state_root, "standalone")
        self._client = Client(
            Role(
                kind="standalone",
                state_root=self.state_root,
                address=parse_address(text, "the demo's record"),
                address_source="the demo's record",
                token=secrets["admin_token"],
                api_key=secrets["api_key"],
            )
        )

    def log_tail(self) -> str:
        try:
            lines = (self.folder / "capyctl.log").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-LOG_LINES_SHOWN:])

    def end(self) -> bool:
        """Stop the models, end the role, and leave nothing behind. Whether all of it is gone."""
        self._stop_deployments()
        self._end_role()
        is_clean = end_all(self.folder)
        if is_clean:
            shutil.rmtree(self.folder, ignore_errors=True)
        return is_clean and not self.folder.exists()

    def _wait_until_up(self) -> None:
        assert self._process is not None
        end_s = time.monotonic() + START_S_MAX
        while time.monotonic() < end_s:
            if self._process.poll() is not None:
                raise CommandFailed(
                    "demo_failed",
                    f"capyctl ended with {self._process.returncode}:\n{self.log_tail()}",
                )
            if self._answers():
                return
            time.sleep(POLL_S)
        raise CommandFailed(
            "demo_failed", f"capyctl did not answer within {START_S_MAX:g} s:\n{self.log_tail()}"
        )

    def _answers(self) -> bool:
        try:
            self.connect()
            self.client.get("/snapshot")
        except (OSError, CommandFailed):
            return False
        return True

    def _stop_deployments(self) -> None:
        """Orderly, as far as the role still answers; what that leaves is ended by hand."""
        try:
            if self._client is None:
                self.connect()
            for row in self._rows():
                self._stop(row)
            end_s = time.monotonic() + STOP_S_MAX
            while any(r["observed_state"] not in ("stopped", "failed") for r in self._rows()):
                if time.monotonic() >= end_s:
                    return
                time.sleep(POLL_S)
        except (OSError, CommandFailed):
            return

    def _stop(self, row: Mapping[str, Any]) -> None:
        body = {
            "action": "stop",
            "expected_revision": int(row["revision"]),
            "deadline_ms": time.time_ns() // 1_000_000 + 60_000,
        }
        change = Change(
            method="POST",
            path=f"{PREFIX}/deployments/{row['id']}/actions",
            key=f"demo-end-{time.time_ns()}",
            body=json.dumps(body).encode(),
        )
        with contextlib.suppress(CommandFailed):
            self.client.send_change(change)

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.client.get("/snapshot")["deployments"]
        return rows

    def _end_role(self) -> None:
        process = self._process
        if process is None:
            return
        for sent in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(sent)
            try:
                process.wait(STOP_S_MAX)
                return
            except subprocess.TimeoutExpired:
                continue


def open_stage() -> Stage:
    """A stage in a fresh folder of the system's temporary one."""
    return Stage(Path(tempfile.mkdtemp(prefix="capyctl-demo-")).resolve())


def find_stage(folder: Path) -> Stage:
    """The stage that an earlier `demo --keep` left.

    Raises:
        CommandFailed: ``not_found``: the folder is not one of a demo.
    """
    place = Path(os.path.realpath(folder))
    if not os.path.isfile(place / MARK):
        raise CommandFailed("not_found", f"{folder} is not the folder of a demo: no {MARK} in it")
    return Stage(place)


def free_ports(count: int) -> int:
    """The first of ``count`` neighbouring loopback ports that nobody listens on.

    Raises:
        CommandFailed: ``demo_failed``: none were found.
    """
    # Below the ports that the system hands out itself, and apart from another demo's.
    start = os.getpid() * ENGINE_PORTS
    for step in range(PORT_TRIES_MAX):
        first = PORT_MIN + (start + step * 37) % PORTS
        if all(_is_free(first + offset) for offset in range(count)):
            return first
    raise CommandFailed("demo_failed", f"no {count} free ports from {PORT_MIN} on")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _closed(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The caller's environment without what would change the demo's settings."""
    kept = {name: value for name, value in environ.items() if not name.startswith("CAPYCTL_")}
    source = str(Path(capyctl.__file__).parents[1])
    path = os.pathsep.join(filter(None, (source, kept.get("PYTHONPATH"))))
    return {**kept, "XDG_CONFIG_HOME": str(folder / "config"), "PYTHONPATH": path}

"""The proxies that are compared, each a process of its own on one core, and their CPU time."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PROXY_CORE, LOAD_CORE = "0", "1"
START_S = 20.0
BESIDE = "ingress"
"""Started with the proxies and not compared: it is no proxy of a client's."""

NGINX_CONFIG = """
worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log warn;
events {{ worker_connections 8192; }}
http {{
  access_log off; tcp_nodelay on; client_body_buffer_size 256k; keepalive_requests 100000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  map $http_authorization $known {{ default 0; "Bearer sk-test-key" 1; }}
  upstream engine {{
    server 127.0.0.1:{engine_port}; keepalive 1024; keepalive_requests 100000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      if ($known = 0) {{ return 401; }}
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def pinned(core: str, command: list[str]) -> list[str]:
    """On one core where there are two, else anywhere."""
    return ["taskset", "-c", core, *command] if (os.cpu_count() or 1) > 1 else command


class Process:
    """A process group that ends with us. ``port`` is where it answers; ``group`` None: in ours."""

    def __init__(self, command: list[str], port: int, log: Path, group: int | None = 0) -> None:
        self.port = port
        self.log = log
        with log.open("wb") as out:
            self.child = subprocess.Popen(command, stdout=out, stderr=out, process_group=group)

    def wait_until_it_listens(self) -> None:
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            if self.child.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.child.args} does not listen: {self.log.read_text()[-2000:]}")

    def cpu_s(self) -> float:
        """CPU seconds of all its threads and children, from schedstat."""
        total_ns = 0
        for pid in self._family(self.child.pid):
            for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):
                    total_ns += int(file.read_text().split()[0])
        return total_ns / 1e9

    def pss_mib(self) -> float:
        total_kib = 0
        for pid in self._family(self.child.pid):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total_kib += int(line.split()[1])
        return total_kib / 1024

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGTERM)
        try:
            self.child.wait(3)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()

    def _family(self, pid: int) -> list[int]:
        found = [pid]
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                for child in file.read_text().split():
                    found += self._family(int(child))
        return found


def compiled(folder: Path) -> tuple[Path, Path]:
    """The engine and the load generator, built with the machine's C compiler."""
    here = Path(__file__).parent
    for name in ("engine", "load"):
        command = ["cc", "-O2", "-Wall", "-o", str(folder / name), str(here / f"{name}.c")]
        subprocess.run(command, check=True)
    return folder / "engine", folder / "load"


def start_proxies(folder: Path, engine_port: int, *, far: bool) -> dict[str, Process]:
    """capyctl, and nginx and asyncio beside it as yardsticks; nginx only where it is installed.

    ``far``: also capyctl on two machines, under TLS and plain, and of these the server alone: its
    host's ingress is then on the engine's core.
    """
    started = {}
    python = [sys.executable, "-m"]
    if far:
        started |= _server_alone(folder, engine_port)
    for name in ("two, tls", "two, plain") if far else ():
        port = free_port()
        more = ["plain"] if "plain" in name else []
        module = "benchmarks.relay.two_machines"
        command = [*python, module, str(port), str(engine_port), *more]
        started[name] = Process(pinned(PROXY_CORE, command), port, folder / f"{name}.log")
    for name, module in (("capyctl", "plane"), ("asyncio", "stock")):
        port = free_port()
        command = [*python, f"benchmarks.relay.{module}", str(port), str(engine_port)]
        started[name] = Process(pinned(PROXY_CORE, command), port, folder / f"{name}.log")
    if shutil.which("nginx"):
        port = free_port()
        config = folder / "nginx.conf"
        config.write_text(NGINX_CONFIG.format(folder=folder, port=port, engine_port=engine_port))
        command = pinned(PROXY_CORE, ["nginx", "-c", str(config)])
        started["nginx"] = Process(command, port, folder / "nginx.log")
    for process in started.values():
        process.wait_until_it_listens()
    return started


def _server_alone(folder: Path, engine_port: int) -> dict[str, Process]:
    """A server under TLS, and the ingress that it relays through, which is not compared."""
    from benchmarks.relay.two_machines import write_certificates

    write_certificates(folder)
    port, ingress_port = free_port(), free_port()
    module = [sys.executable, "-m", "benchmarks.relay.two_machines"]
    ingress = [*module, str(ingress_port), str(engine_port), "ingress", str(folder)]
    server = [*module, str(port), str(ingress_port), "server", str(folder)]
    return {
        BESIDE: Process(pinned(LOAD_CORE, ingress), ingress_port, folder / "ingress.log"),
        "server, tls": Process(pinned(PROXY_CORE, server), port, folder / "server.log"),
    }

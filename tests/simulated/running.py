"""Starts the engine program as a daemon would, and talks HTTP to it over loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import attrs
import h11
import trio

from capyctl.domain.units import GIB
from capyctl.simulated import engine_program
from capyctl.simulated.checkpoint_writer import write_checkpoint
from capyctl.simulated.local_model import open_model
from capyctl.simulated.usage import start_ticks_of

PROGRAM = Path(engine_program.__file__)
READY = {
    "vllm": "Application startup complete.",
    "llamacpp": "server is listening",
    "sglang": "The server is fired up and ready to roll!",
    "tensorfold": "tensorfold: serving",
}
FAST = {"load_s": 0.05, "park_s": 0.0, "wake_s": 0.0, "worker_loss_s": 0.3}


@attrs.frozen
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True

    def json(self):
        return json.loads(self.body)

    def events(self) -> list:
        """The data of each event; JSON parsed, `[DONE]` as it is."""
        found = [line[6:] for line in self.body.decode().split("\n\n") if line]
        return [text if text == "[DONE]" else json.loads(text) for text in found]


class Engine:
    """One running engine."""

    def __init__(self, process: trio.Process, port: int) -> None:
        self.process = process
        self.port = port
        self.log = ""

    async def wait_line(self, text: str) -> None:
        while text not in self.log:
            piece = await self.process.stdout.receive_some()
            assert piece, f"ended without {text!r}: {self.log}"
            self.log += piece.decode()

    async def wait_exit(self) -> int:
        """The exit code; reads the rest of the log, which every child must have closed."""
        with contextlib.suppress(trio.ClosedResourceError):
            async for piece in self.process.stdout:
                self.log += piece.decode()
        return await self.process.wait()

    def children(self) -> list[int]:
        """Pids of the other processes of its group, in order of their age."""
        found = []
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry)) == self.process.pid != int(entry):
                    found.append(int(entry))
        return sorted(pid for pid in found if start_ticks_of(pid) is not None)

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.call("GET", path, **headers)

    async def post(self, path: str, payload: object = None, **headers: str) -> Reply:
        return await self.call("POST", path, payload, **headers)

    async def call(self, method: str, path: str, payload=None, **headers: str) -> Reply:
        async with self.open(method, path, payload, **headers) as stream:
            return await stream.reply()

    @contextlib.asynccontextmanager
    async def open(self, method: str, path: str, payload=None, **headers) -> AsyncIterator[Stream]:
        """One request on a connection of its own, which leaving the context closes."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with stream:
            body = b"" if payload is None else json.dumps(payload).encode()
            sent = {"host": "engine", "content-length": str(len(body))}
            if payload is not None:
                sent["content-type"] = "application/json"
            sent |= {name.replace("_", "-"): value for name, value in headers.items()}
            client = h11.Connection(h11.CLIENT)
            request = h11.Request(method=method, target=path, headers=list(sent.items()))
            await stream.send_all(client.send(request) or b"")
            await stream.send_all((client.send(h11.Data(data=body)) or b"") if body else b"")
            client.send(h11.EndOfMessage())
            yield Stream(stream, client)

    def chat(self, words: str = "hello", **fields):
        return {"messages": [{"role": "user", "content": words}], **fields}


class Stream:
    def __init__(self, stream: trio.SocketStream, client: h11.Connection) -> None:
        self._stream = stream
        self._client = client
        self._response: h11.Response | None = None
        self.body = b""

    async def _next(self):
        while (event := self._client.next_event()) is h11.NEED_DATA:
            self._client.receive_data(await self._stream.receive_some())
        return event

    async def wait_body(self, text: str) -> None:
        """Until ``text`` was received."""
        while text.encode() not in self.body:
            await self._step()

    async def _step(self) -> bool:
        event = await self._next()
        if isinstance(event, h11.Response):
            self._response = event
        elif isinstance(event, h11.Data):
            self.body += event.data
        return not isinstance(event, h11.EndOfMessage | h11.ConnectionClosed)

    async def reply(self) -> Reply:
        """Everything up to the end; ``complete`` is False when it broke off."""
        complete = True
        try:
            while await self._step():
                pass
        except (h11.RemoteProtocolError, trio.BrokenResourceError):
            complete = False
        if self._response is None:
            return Reply(0, {}, b"", complete=False)
        headers = {name.decode(): value.decode() for name, value in self._response.headers}
        return Reply(self._response.status_code, headers, self.body, complete)


async def until(reached: Callable[[], bool]) -> None:
    """Until something holds that the kernel tells nobody of; the test's own bound ends this."""
    while not reached():  # noqa: ASYNC110
        await trio.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Machine:
    """A folder with models and a usage folder; starts engines on a simulated 24 GiB card."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.usage = folder / "usage"
        self.document: dict = {"engines": dict(FAST)}

    def model(self, name: str, *, weights_bytes: int = 2 * GIB, format: str, seed: int = 0) -> str:
        place = self.folder / name
        return str(write_checkpoint(place, weights_bytes=weights_bytes, format=format, seed=seed))

    @contextlib.asynccontextmanager
    async def engine(
        self, family: str, *arguments: str, wait: bool = True, env=None, **behaviour
    ) -> AsyncIterator[Engine]:
        """Runs ``family`` with its arguments and a port; ends its whole group in the end."""
        port = free_port()
        document = self.document | {"engines": self.document["engines"] | behaviour}
        variables = {
            "CAPYCTL_SIMULATED": json.dumps(document),
            "CAPYCTL_SIMULATED_USAGE": str(self.usage),
            "CUDA_VISIBLE_DEVICES": "0",
        } | (env or {})
        address = [*arguments, "--host", "127.0.0.1", "--port", str(port)]
        process = await trio.lowlevel.open_process(
            [sys.executable, "-I", str(PROGRAM), family, *address],
            env=variables,
            cwd="/",
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        engine = Engine(process, port)
        try:
            with trio.fail_after(20):
                if wait:
                    await engine.wait_line(READY[family])
                yield engine
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await process.wait()
                await process.stdout.aclose()

    def vllm(self, *arguments: str, model: str | None = None, dev: bool = True, env=None, **more):
        path = model or self._default("v", "safetensors")
        variables = ({"VLLM_SERVER_DEV_MODE": "1"} if dev else {}) | (env or {})
        options = ["serve", path, "--served-model-name", "m", "n"]
        if "--kv-cache-memory-bytes" not in arguments:
            options += ["--kv-cache-memory-bytes", str(GIB)]
        return self.engine("vllm", *options, *arguments, env=variables, **more)

    def llama(self, *arguments: str, model: str | None = None, **more):
        path = model or self._default("l", "gguf")
        return self.engine(
            "llamacpp", "--model", path, "--alias", "m", "--ctx-size", "8192", "--parallel", "2",
            *arguments, **more,
        )  # fmt: skip

    def sglang(self, *arguments: str, model: str | None = None, **more):
        options = ["--model-path", model or self._default("v", "safetensors")]
        options += ["--served-model-name", "m"]
        if "--max-total-tokens" not in arguments:
            options += ["--max-total-tokens", str(self.kv_tokens(GIB))]
        return self.engine("sglang", *options, *arguments, **more)

    def kv_tokens(self, kv_cache_bytes: int) -> int:
        """Tokens of the default model that take so many bytes of cache."""
        return kv_cache_bytes // open_model(self._default("v", "safetensors")).kv_bytes_per_token

    def tensorfold(self, *arguments: str, model: str | None = None, **more):
        path = model or self._default("v", "safetensors")
        options = ["serve", path, "--name", "m"]
        if "--context" not in arguments:
            options += ["--context", "1024"]
        return self.engine("tensorfold", *options, *arguments, **more)

    def _default(self, name: str, format: str) -> str:
        if (self.folder / name).exists():
            return str(self.folder / name / ("model.gguf" if format == "gguf" else ""))
        return self.model(name, format=format)

    def drawn(self) -> list[dict]:
        """What the usage folder says, whoever lives."""
        return [json.loads(path.read_text()) for path in sorted(self.usage.glob("[0-9]*.json"))]

"""Two ways to the API: straight into the application, in virtual time; and over a real socket."""

from __future__ import annotations

import contextlib
import json

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from capyctl.api.app import make_app
from capyctl.api.limits import Limits
from capyctl.api.serve import open_loopback, serve_management
from tests.api.fake_management import NOW_MS, FakeClock, FakeManagement

TOKEN = "admin-token-0123456789abcdef0123456789"
KEY = "inference-key-0123456789abcdef012345"
BEARER = (b"authorization", f"Bearer {TOKEN}".encode())
HOST = (b"host", b"127.0.0.1:7443")
JSON = (b"content-type", b"application/json")
PREFIX = "/management/v1"
CONFIG = {"name": "my-model", "engine": "vllm", "model": "Qwen3-4B"}


@attrs.frozen(kw_only=True)
class Answer:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        """The error's code; None on success."""
        return self.json()["error"]["code"] if self.status >= 400 else None

    def values(self, name):
        return [value for key, value in self.headers if key.lower() == name]


class Call:
    """One request, straight into the application. A body that is None never ends."""

    def __init__(self, app, method, path, headers=(), body=b"", *, query=b""):
        self.begun = trio.Event()
        self.answered = trio.Event()
        self.chunks = []
        self.status = None
        self.headers = []
        self._app = app
        self._gone = trio.Event()
        self._to_send = [] if body is None else [body]
        self._news = trio.Event()
        self._scope = {
            "type": "http",
            "http_version": "1.1",
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "method": method,
            "scheme": "http",
            "path": "/decoded/by/the/server",
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": list(headers),
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 7443),
            "state": {},
            "extensions": {},
        }

    def leave(self):
        """What a disconnect is to the application."""
        self._gone.set()

    async def run(self):
        await self._app(self._scope, self._receive, self._send)
        self.answered.set()

    async def next_chunk(self):
        while not self.chunks:
            self._news = trio.Event()
            await self._news.wait()
        return self.chunks.pop(0)

    @property
    def answer(self):
        return Answer(status=self.status, headers=self.headers, body=b"".join(self.chunks))

    async def _receive(self):
        if self._to_send:
            return {"type": "http.request", "body": self._to_send.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = list(message["headers"])
            self.begun.set()
        elif message.get("body"):
            self.chunks.append(message["body"])
        self._news.set()


class Client:
    """Calls with a token; keeps what it started in its nursery."""

    def __init__(self, app, nursery):
        self.app = app
        self._nursery = nursery

    def start(self, method, path, *, headers=(), body=b"", query=b"", bare=False):
        """Begin a call; ``path`` without the prefix unless it is bare, then without a token too."""
        basic = () if bare else (HOST, BEARER)
        full = path if bare else PREFIX + path
        call = Call(self.app, method, full, (*basic, *headers), body, query=query)
        self._nursery.start_soon(call.run)
        return call

    async def ask(self, method, path, **more):
        call = self.start(method, path, **more)
        await call.answered.wait()
        return call.answer

    def begin_change(self, method, path, body, *, key="key"):
        headers = (JSON, (b"idempotency-key", key.encode()))
        return self.start(method, path, headers=headers, body=json.dumps(body).encode())

    async def change(self, method, path, body, *, key="key"):
        call = self.begin_change(method, path, body, key=key)
        await call.answered.wait()
        return call.answer

    async def create(self, *, key="create", **config):
        body = {"config": {**CONFIG, **config}, "activate": False}
        return await self.change("POST", "/deployments", body, key=key)

    async def act(self, id, action, *, key, **fields):
        return await self.change(
            "POST", f"/deployments/{id}/actions", action_body(action, **fields), key=key
        )

    def begin_act(self, id, action, *, key, **fields):
        return self.begin_change(
            "POST", f"/deployments/{id}/actions", action_body(action, **fields), key=key
        )


def action_body(action, *, revision=1, deadline_ms=NOW_MS + 60_000, **more):
    return {"action": action, "expected_revision": revision, "deadline_ms": deadline_ms, **more}


@contextlib.asynccontextmanager
async def running(fake=None, **limits):
    """A client of an application over a fake, without a server."""
    fake = FakeManagement() if fake is None else fake
    app = make_app(fake, token=TOKEN, inference_key=KEY, clock=FakeClock(), limits=Limits(**limits))
    async with trio.open_nursery() as nursery:
        app.nursery = nursery
        await app.startup()
        yield Client(app, nursery)
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def served(fake=None, **limits):
    """A `Socket` opener for the API on a free loopback port, and its shutdown event."""
    fake = FakeManagement() if fake is None else fake
    app = make_app(fake, token=TOKEN, clock=FakeClock(), limits=Limits(**limits))
    listeners = await open_loopback("127.0.0.1", 0)
    server = Served(listeners[0].socket.getsockname()[1], app)
    async with trio.open_nursery() as nursery:

        async def serve(task_status=trio.TASK_STATUS_IGNORED):
            await serve_management(
                app, listeners, shutdown=server.shutdown, task_status=task_status
            )
            server.ended.set()

        await nursery.start(serve)
        yield server
        server.shutdown.set()


class Served:
    def __init__(self, port, app):
        self.port = port
        self.app = app
        self.shutdown = trio.Event()
        self.ended = trio.Event()

    async def connect(self):
        return Socket(await trio.open_tcp_stream("127.0.0.1", self.port))

    async def ask(self, method, path, *, headers=(), body=b"", plain=False):
        """One request on a connection of its own."""
        async with await self.connect() as socket:
            await socket.send(method, path, headers=headers, body=body, plain=plain)
            return await socket.answer()


class Socket:
    """A client's end, byte for byte."""

    def __init__(self, stream):
        self.stream = stream
        self.held = b""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await trio.aclose_forcefully(self.stream)

    async def send(self, method, path, *, headers=(), body=b"", plain=False):
        """``plain`` leaves the token and the prefix out."""
        full = path if plain else PREFIX + path
        lines = [f"{method} {full} HTTP/1.1".encode(), b"host: localhost"]
        lines += [b": ".join(header) for header in (*(() if plain else (BEARER,)), *headers)]
        if body:
            lines.append(f"content-length: {len(body)}".encode())
        await self.stream.send_all(b"\r\n".join(lines) + b"\r\n\r\n" + body)

    async def more(self):
        data = bytes(await self.stream.receive_some(65536))
        self.held += data
        return data

    async def read_until(self, mark):
        """Everything up to and with ``mark``."""
        while mark not in self.held:
            if not await self.more():
                raise EOFError(self.held)
        found, _, self.held = self.held.partition(mark)
        return found + mark

    async def head(self):
        lines = (await self.read_until(b"\r\n\r\n"))[:-4].split(b"\r\n")
        headers = [tuple(line.split(b": ", 1)) for line in lines[1:]]
        return int(lines[0].split()[1]), headers

    async def answer(self):
        """One answer with a Content-Length."""
        status, headers = await self.head()
        length = int(dict(headers)[b"content-length"])
        while len(self.held) < length:
            if not await self.more():
                raise EOFError(self.held)
        body, self.held = self.held[:length], self.held[length:]
        return Answer(status=status, headers=headers, body=body)

    async def chunk(self):
        """One piece of a chunked body; empty at its end."""
        size = int((await self.read_until(b"\r\n"))[:-2], 16)
        while len(self.held) < size + 2:
            if not await self.more():
                raise EOFError(self.held)
        data, self.held = self.held[:size], self.held[size + 2 :]
        return data

    async def read_to_end(self):
        with contextlib.suppress(trio.BrokenResourceError):
            while await self.more():
                pass
        return self.held


async def until_quiet():
    """Every task waits for something; nothing more happens by itself."""
    await wait_all_tasks_blocked()

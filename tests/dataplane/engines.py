"""A scriptable engine over a raw loopback socket, and a whole plane in front of it."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import attrs
import trio

from capyctl.dataplane.listener import bind, serve
from capyctl.dataplane.plane import Limits, Plane
from capyctl.dataplane.records import RequestRecord
from capyctl.dataplane.routes import ENGINE_PATHS, Route, RouteTable
from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.domain.launches import Endpoint
from capyctl.gates.admission import Admission, QueueBounds
from capyctl.gates.gate import Gate

DEPLOYMENT = DeploymentId("01J00000000000000000000000")
KEY = b"sk-test-key"
ENGINE_KEY = "engine-key-1"


@attrs.define
class Received:
    """One request as an engine saw it."""

    head: bytes
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.split(": ", 1) for line in lines if line)
        return {name.lower(): value for name, value in pairs}

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode()


class EngineConnection:
    def __init__(self, engine: "FakeEngine", stream: trio.SocketStream) -> None:
        self.engine = engine
        self.stream = stream
        self._rest = b""

    async def request(self) -> Received | None:
        """The next request, whole; None when the plane closed the connection."""
        data = self._rest
        while b"\r\n\r\n" not in data:
            more = await self._more()
            if not more:
                return None
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        received = Received(head, body)
        length = int(received.headers["content-length"])
        while len(body) < length:
            more = await self._more()
            if not more:
                return None
            body += more
        received.body, self._rest = body[:length], body[length:]
        self.engine.requests.append(received)
        return received

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def closed(self) -> None:
        """Until the plane has closed the connection."""
        while await self._more():
            pass

    async def close(self) -> None:
        await self.stream.aclose()

    async def _more(self) -> bytes:
        try:
            return await self.stream.receive_some()
        except trio.BrokenResourceError:
            return b""


Script = Callable[[EngineConnection], Awaitable[None]]


class FakeEngine:
    """Runs ``script`` on each connection; the connection is closed when it returns."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Received] = []
        self.connection_count = 0
        self.open_count = 0
        self.port = 0

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(bind("127.0.0.1", 0)))
        self.port = listener.socket.getsockname()[1]
        await trio.serve_listeners(
            self._connection, [listener], task_status=_port_only(task_status)
        )

    async def _connection(self, stream: trio.SocketStream) -> None:
        self.connection_count += 1
        self.open_count += 1
        try:
            with contextlib.suppress(trio.BrokenResourceError):
                await self.script(EngineConnection(self, stream))
        finally:
            self.open_count -= 1
            await stream.aclose()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(host="127.0.0.1", port=self.port, key=ENGINE_KEY, served_name="m")


class _port_only(trio.TaskStatus):
    def __init__(self, outer: trio.TaskStatus[None]) -> None:
        self._outer = outer

    def started(self, value: object = None) -> None:
        self._outer.started()


def answers(data: bytes, *, pieces: list[bytes] | None = None) -> Script:
    """An engine that answers every request of a connection with the same bytes."""

    async def script(connection: EngineConnection) -> None:
        while await connection.request() is not None:
            for piece in pieces or [data]:
                await connection.send(piece)

    return script


def json_answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return (
        b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b"
    ) % (status, len(body), body)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text.encode()


ROLE_EVENT = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
DONE_EVENT = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"


@attrs.define
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    complete: bool
    """The body ended as its framing says."""
    raw_body: bytes = b""

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key.lower() == name.lower()]
        assert len(found) < 2, f"{name} is there {len(found)} times"
        return found[0] if found else None


class HttpClient:
    """A client over a raw socket, for byte-exact looks."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.rest = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def _more(self) -> bool:
        try:
            data = await self.stream.receive_some()
        except trio.BrokenResourceError:
            data = b""
        self.rest += data
        return bool(data)

    async def until(self, mark: bytes) -> bytes:
        """Everything up to and with ``mark``."""
        while mark not in self.rest:
            assert await self._more(), f"closed before {mark!r}: {self.rest!r}"
        end = self.rest.index(mark) + len(mark)
        taken, self.rest = self.rest[:end], self.rest[end:]
        return taken

    async def answer(self, *, head_only: bool = False) -> Answer:
        """The next answer, whole or broken off."""
        head = (await self.until(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        headers = [(line.split(": ", 1)[0], line.split(": ", 1)[1]) for line in lines]
        got = Answer(int(first.split()[1]), headers, b"", complete=True)
        if head_only:
            return got
        if got.header("transfer-encoding") == "chunked":
            await self._chunked(got)
        elif (length := got.header("content-length")) is not None:
            while len(self.rest) < int(length) and await self._more():
                pass
            got.body, self.rest = self.rest[: int(length)], self.rest[int(length) :]
            got.complete = len(got.body) == int(length)
        else:
            while await self._more():
                pass
            got.body, self.rest = self.rest, b""
        return got

    async def _chunked(self, got: Answer) -> None:
        while True:
            while b"\r\n" not in self.rest:
                if not await self._more():
                    got.complete = False
                    return
            line, _, rest = self.rest.partition(b"\r\n")
            size = int(line, 16)
            if size == 0:
                got.raw_body += await self._trailer()
                return
            while len(rest) < size + 2:
                if not await self._more():
                    got.complete = False
                    got.body += rest
                    return
                rest = self.rest.partition(b"\r\n")[2]
            assert rest[size : size + 2] == b"\r\n"
            got.body += rest[:size]
            got.raw_body += line + b"\r\n" + rest[: size + 2]
            self.rest = rest[size + 2 :]

    async def _trailer(self) -> bytes:
        return await self.until(b"\r\n\r\n")

    async def ended(self) -> bool:
        """True when the plane closes without another byte."""
        return not await self._more() and not self.rest

    async def close(self) -> None:
        await self.stream.aclose()


def post(
    body: bytes,
    path: str = "/v1/chat/completions",
    *,
    headers: tuple[str, ...] = (),
    key: bytes | None = KEY,
    length: int | None = None,
) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: test"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key.decode()}")
    if not any(h.lower().startswith("content-type") for h in headers):
        lines.append("Content-Type: application/json")
    if not any(h.lower().startswith("transfer-encoding") for h in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    lines.extend(headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str, *, method: str = "GET", key: bytes | None = KEY, headers=()) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers]
    if key is not None:
        lines.append(f"Authorization: Bearer {key.decode()}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


class World:
    """A plane on loopback with one deployment, its engines, and everything that it tells."""

    def __init__(self, nursery: trio.Nursery, limits: Limits, **plane_fields: object) -> None:
        self.nursery = nursery
        self.records: list[RequestRecord] = []
        self.nudges: list[DeploymentId] = []
        self.unproven: list[tuple[InstanceId, int, str]] = []
        self.changed = trio.Event()
        self.bounds = QueueBounds()
        self.admission = Admission(DEPLOYMENT, bounds=self.bounds)
        self.engines: list[FakeEngine] = []
        self.table = RouteTable()
        self.streams: list[trio.SocketStream] = []
        self.port = 0
        fields = {"api_key": KEY, "limits": limits, **plane_fields}
        self.plane = Plane(
            routes=lambda: self.table,
            nudge=self._note(self.nudges),
            unproven=lambda who, generation, why: self._noted(
                self.unproven, (who, generation, why)
            ),
            on_request=self._note(self.records),
            **fields,
        )

    def _note(self, where: list) -> Callable[[object], None]:
        return lambda what: self._noted(where, what)

    def _noted(self, where: list, what: object) -> None:
        where.append(what)
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Until it holds; looked at whenever the plane tells something."""
        while not condition():
            await self.changed.wait()

    async def record(self, count: int = 1) -> RequestRecord:
        """The record of the ``count``-th request."""
        await self.until(lambda: len(self.records) >= count)
        return self.records[count - 1]

    def route(self, *names: str, **changes: object) -> None:
        fields = {
            "deployment": DEPLOYMENT,
            "admission": self.admission,
            "engine_paths": frozenset(ENGINE_PATHS),
            "family": "vllm",
            "takes_cache_salt": True,
            "request_deadline_s": 30.0,
            **changes,
        }
        self.table = RouteTable(models={name: Route(name=name, **fields) for name in names})

    async def add_engine(self, script: Script, *, ready: bool = True) -> FakeEngine:
        engine = FakeEngine(script)
        await self.nursery.start(engine.serve)
        gate = Gate(InstanceId(DEPLOYMENT, len(self.engines)))
        self.engines.append(engine)
        self.admission.add_gate(gate)
        if ready:
            gate.open_for(engine.endpoint, 1)
        return engine

    async def client(self) -> HttpClient:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self.streams.append(stream)
        return HttpClient(stream)

    async def ask(self, request: bytes, **how: bool) -> Answer:
        """One request on a connection of its own."""
        client = await self.client()
        async with client.stream:
            await client.send(request)
            return await client.answer(**how)


@contextlib.asynccontextmanager
async def world(
    *scripts: Script, limits: Limits | None = None, **plane_fields: object
) -> AsyncIterator[World]:
    """A plane with one ready instance for each script, serving the model ``m``."""
    async with trio.open_nursery() as nursery:
        made = World(nursery, limits or Limits(), **plane_fields)
        made.route("m")
        for script in scripts:
            await made.add_engine(script)
        _, made.port = await nursery.start(serve, ("127.0.0.1", 0), made.plane)
        try:
            yield made
        finally:
            for stream in made.streams:
                stream.socket.close()
            nursery.cancel_scope.cancel()

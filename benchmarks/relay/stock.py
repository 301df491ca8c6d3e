"""A yardstick: a bare reverse proxy on the standard library's asyncio protocols and httptools.

``python -m benchmarks.relay.stock PORT ENGINE_PORT``. It checks the key and finds the model, and
has no limits, deadlines, gates or records.
"""

import asyncio
import functools
import json
import sys

import httptools

KEY = b"Bearer sk-test-key"
ENGINE_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)


class Engine(asyncio.Protocol):
    def __init__(self, pool: list) -> None:
        self.pool = pool
        self.client: Client | None = None
        self.parser = httptools.HttpResponseParser(self)
        self.transport = None

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.client.transport.write(data)
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        client, self.client = self.client, None
        client.engine = None
        self.pool.append(self)

    def connection_lost(self, _) -> None:
        if self in self.pool:
            self.pool.remove(self)
        if self.client is not None:
            self.client.transport.close()


class Client(asyncio.Protocol):
    def __init__(self, engine_port: int, pool: list) -> None:
        self.engine_port = engine_port
        self.pool = pool
        self.parser = httptools.HttpRequestParser(self)
        self.engine: Engine | None = None
        self.transport = None
        self.key = None
        self.parts: list[bytes] = []

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"authorization":
            self.key = value

    def on_body(self, data: bytes) -> None:
        self.parts.append(data)

    def on_message_complete(self) -> None:
        body = b"".join(self.parts)
        self.parts.clear()
        if self.key != KEY or json.loads(body)["model"] != "m":
            self.transport.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
            return
        if self.pool:
            self.forward(self.pool.pop(), body)
        else:
            self.connecting = asyncio.ensure_future(self.connect(body))

    async def connect(self, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        make = functools.partial(Engine, self.pool)
        _, engine = await loop.create_connection(make, "127.0.0.1", self.engine_port)
        self.forward(engine, body)

    def forward(self, engine: Engine, body: bytes) -> None:
        self.engine, engine.client = engine, self
        engine.transport.write(ENGINE_HEAD % len(body) + body)

    def connection_lost(self, _) -> None:
        if self.engine is not None:
            self.engine.transport.close()


async def main(port: int, engine_port: int) -> None:
    pool: list[Engine] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Client(engine_port, pool), "127.0.0.1", port, backlog=2048
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))

"""A server on loopback that answers each connection with the next piece of a script."""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import threading

import attrs
import trio

from capyctl.client.aio import AsyncClient
from capyctl.client.sync import Client

TOKEN = "t" * 43


def answer(status, fields):
    """A JSON answer, as bytes."""
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def refusal(code, status, *, retryable=False, details=None):
    error = {
        "code": code,
        "details": details or {},
        "message": "because",
        "operation_id": None,
        "retryable": retryable,
    }
    return answer(status, {"api_version": "1", "error": error})


def stream(*frames, cut=False):
    """An event stream; ``cut`` breaks it off in the middle of a chunk."""
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(frame), frame) for frame in frames)
    return head + chunks + (b"ff\r\nid: " if cut else b"0\r\n\r\n")


def frame(seq, kind="ready_committed"):
    data = json.dumps(
        {
            "api_version": "1",
            "deployment_id": "d",
            "operation_id": None,
            "payload": {"instance": 0},
            "recorded_at_ms": "1792545616717",
        }
    )
    return f"id: 01M5E0M1C4VQT1DXDZNMJ75NRN:{seq}\nevent: {kind}\ndata: {data}\n\n".encode()


def last_words(code, *, resnapshot):
    error = {"code": code, "resnapshot_required": resnapshot, "retryable": False}
    data = json.dumps({"api_version": "1", "error": error})
    return f"event: management_stream_error\ndata: {data}\n\n".encode()


DROP = b""
"""Reads the request and closes."""
RECEIPT = {
    "api_version": "1",
    "deployment_id": "01M5E0MPXN61STKHGZ6BTEFVM3",
    "joined": False,
    "operation_id": "01M5E0PW0GTNAZM76H039K3YFY",
    "revision": "7",
}


def snapshot(seq, *deployments):
    return {
        "api_version": "1",
        "cursor": f"01M5E0M1C4VQT1DXDZNMJ75NRN:{seq}",
        "deployments": list(deployments),
        "routes": [{"deployment_id": "d", "route": "my-model"}],
        "operations": [],
        "a_field_of_tomorrow": {"x": [1]},
    }


def deployment(**changes):
    return {
        "id": "d",
        "name": "my-model",
        "revision": "3",
        "desired_state": "ready",
        "observed_state": "stopped",
        "desired_instances": 1,
        "ready_instances": 0,
        "conditions": [],
        "instances": [{"index": 0, "host_id": None, "observed_state": "stopped"}],
        "timeouts": {
            "request_deadline_ms": 1_800_000,
            "initialize_ms": 610_000,
            "stop_ms": 900_000,
            "provenance": {"initialize": "derived"},
        },
        "a_field_of_tomorrow": True,
        **changes,
    }


class Server:
    """Says its script, one piece a connection, and keeps what it was sent."""

    def __init__(self, *script):
        self.script = list(script)
        self.received = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        # A connection of our own ends the wait for the next one.
        self.script.clear()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        self._thread.join(5)
        self._listener.close()

    def _run(self):
        while True:
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(5)
                if not self.script:
                    return
                with contextlib.suppress(OSError):
                    self.received.append(_request(connection))
                    connection.sendall(self.script.pop(0))


def _request(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.decode().split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            while len(body) < int(value):
                body += connection.recv(65536)
    return Received(head=head.decode(), body=body)


@attrs.frozen(kw_only=True)
class Received:
    head: str
    body: bytes

    @property
    def line(self):
        return self.head.partition("\r\n")[0]

    def header(self, name):
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(": ")
            if key.lower() == name:
                return value
        return None


class Blocking:
    """`sync.Client`, whose pauses take no time but are kept."""

    def __init__(self, port):
        self.slept = []
        self.client = Client(host="127.0.0.1", port=port, token=TOKEN, sleep=self.slept.append)

    def __getattr__(self, name):
        return getattr(self.client, name)

    def follow_until(self, count, after=None):
        """The first so many things that are told."""
        told = self.client.follow(after)
        found = [next(told) for _ in range(count)]
        told.close()
        return found


class Async:
    """`aio.AsyncClient`, one `trio.run` a call."""

    def __init__(self, port):
        self.client = AsyncClient(host="127.0.0.1", port=port, token=TOKEN)

    def __getattr__(self, name):
        method = getattr(self.client, name)
        return lambda *args, **more: trio.run(functools.partial(method, *args, **more))

    def follow_until(self, count, after=None):
        async def follow():
            found = []
            async with self.client.follow(after) as told:
                async for one in told:
                    found.append(one)
                    if len(found) == count:
                        return found

        return trio.run(follow)

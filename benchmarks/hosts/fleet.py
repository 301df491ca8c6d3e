"""All hosts in one process, led by lines of JSON: ``python -m benchmarks.hosts.fleet FOLDER``.

Each line on the standard input is a command, and is answered by one line: `Fleet` has them. The
end of the input ends the process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import trio

from benchmarks.hosts.member import Member
from capyctl.checkpoints.digest import LocalCheckpoints
from capyctl.domain.checkpoints import CheckpointFacts
from capyctl.domain.ids import DeploymentId
from capyctl.domain.units import GIB
from capyctl.simulated.checkpoint_writer import write_checkpoint

LINE_BYTES_MAX = 4 * 1024 * 1024
ANSWER = json.dumps(
    {
        "id": "chatcmpl-light",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()
RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)
) + ANSWER


@attrs.define(eq=False, kw_only=True)
class Fleet:
    """The hosts, by name. Public methods are commands."""

    folder: Path
    facts: CheckpointFacts
    engine_port: int
    load_s: float
    nursery: trio.Nursery
    members: dict[str, Member] = attrs.field(factory=dict)

    async def join(self, document: str) -> str:
        """One more host joins, and does not dial yet. Its id."""
        member = await Member.joined(
            self.folder, document, self.facts, self.engine_port, self.load_s
        )
        self.members[member.name] = member
        await self.nursery.start(member.run)
        return member.identity.host

    async def dial(self, names: list[str]) -> float:
        """These dial, all at once; answered when all are linked. Seconds it took."""
        began_s = time.monotonic()
        for name in names:
            self.nursery.start_soon(self.members[name].dial)
        return await self.linked(names) - began_s

    async def linked(self, names: list[str]) -> float:
        """Wait until all of these are linked; the monotonic time at which they were."""
        for name in names:
            await self.members[name].linked.wait()
        return time.monotonic()

    async def leave(self, names: list[str]) -> float:
        """These are not heard of any more, until they dial. The monotonic time."""
        for name in names:
            self.members[name].leave()
        await trio.lowlevel.checkpoint()
        return time.monotonic()

    async def prepared_at(self, deployment: str) -> float | None:
        """When a host was last asked for a launch of it, on the monotonic clock."""
        await trio.lowlevel.checkpoint()
        id = DeploymentId(deployment)
        found = (member.host.prepared_at_s.get(id) for member in self.members.values())
        return max((at_s for at_s in found if at_s is not None), default=None)

    async def engines(self) -> dict[str, int]:
        """How many engines each host runs."""
        await trio.lowlevel.checkpoint()
        return {name: len(member.host.engines) for name, member in self.members.items()}


async def answer_requests(stream: trio.SocketStream) -> None:
    """Any engine: one short answer to each request."""
    pending = b""
    async with stream:
        while True:
            head, found, rest = pending.partition(b"\r\n\r\n")
            if found:
                size = _length(head)
                if len(rest) >= size:
                    pending = rest[size:]
                    await stream.send_all(RESPONSE)
                    continue
            try:
                more = await stream.receive_some(65_536)
            except trio.BrokenResourceError:
                return
            if not more:
                return
            pending += more


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def lines() -> AsyncIterator[bytes]:
    """Of the standard input."""
    pending = b""
    async with trio.lowlevel.FdStream(0) as stream:
        while more := await stream.receive_some(65_536):
            *whole, pending = (pending + more).split(b"\n")
            assert len(pending) <= LINE_BYTES_MAX
            for line in whole:
                yield line


async def serve(folder: Path, load_s: float) -> None:
    model = write_checkpoint(folder / "model", weights_bytes=4 * GIB, context_length=4096)
    facts = await LocalCheckpoints().measure(str(model))
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer_requests, listeners)
        fleet = Fleet(folder=folder, facts=facts, engine_port=port, load_s=load_s, nursery=nursery)
        async for line in lines():
            command, *arguments = json.loads(line)
            print(json.dumps(await getattr(fleet, command)(*arguments)), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(serve, Path(sys.argv[1]), float(sys.argv[2]))

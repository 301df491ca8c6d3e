"""Machines known by name."""

import pytest
import trio

from capyctl.dataplane.names import KEPT_S, Names


class Resolver(trio.abc.HostnameResolver):
    def __init__(self) -> None:
        self.known = {"gpu1.lan": "10.0.0.7"}
        self.asked: list[str] = []

    async def getaddrinfo(self, host, port, family=0, type=0, proto=0, flags=0):
        name = host.decode() if isinstance(host, bytes) else host
        self.asked.append(name)
        if name not in self.known:
            raise OSError("unknown")
        return [(2, type, 6, "", (self.known[name], 0))]

    async def getnameinfo(self, sockaddr, flags):
        raise NotImplementedError


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_literal_addresses_are_asked_of_nobody(address):
    assert await Names().address(address) == address


async def test_names_are_kept_for_a_moment(autojump_clock):
    resolver = Resolver()
    trio.socket.set_custom_hostname_resolver(resolver)
    names = Names()
    assert [await names.address("gpu1.lan") for _ in range(3)] == ["10.0.0.7"] * 3
    assert resolver.asked == ["gpu1.lan"]

    resolver.known["gpu1.lan"] = "10.0.0.8"
    await trio.sleep(KEPT_S + 1)
    assert await names.address("gpu1.lan") == "10.0.0.8"


async def test_unknown_and_impossible_names():
    trio.socket.set_custom_hostname_resolver(Resolver())
    for name in ("gpu2.lan", "a" * 300):
        with pytest.raises(OSError):
            await Names().address(name)

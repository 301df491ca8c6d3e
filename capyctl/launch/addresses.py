"""Leases of loopback ports for engines, lowest free first and each one last to come back."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
PORT_MIN = 1
PORT_MAX = 65_535
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def ephemeral_overlap(first: int, last: int, *, path: Path = EPHEMERAL_RANGE) -> str | None:
    """What is wrong where the kernel gives ports of this range to outgoing connections."""
    try:
        low, high = (int(word) for word in path.read_text().split())
    except (OSError, ValueError):
        return None
    if last < low or high < first:
        return None
    return (
        f"engine ports {first}-{last} overlap {low}-{high}, from which outgoing connections get "
        "theirs; take others, or keep these: "
        f"sysctl -w net.ipv4.ip_local_reserved_ports={first}-{last}"
    )


class PortsExhausted(Exception):
    """No port of the range is left. Tells which range, and who has its ports."""

    def __init__(
        self, first: int, last: int, *, leased_count: int, foreign: tuple[int, ...]
    ) -> None:
        self.first = first
        self.last = last
        self.leased_count = leased_count
        self.foreign = foreign
        held = f", {', '.join(map(str, foreign[:8]))} among them" if foreign else ""
        super().__init__(
            f"no free port in {first}-{last}: engines of this host have {leased_count}, other "
            f"processes listen on {len(foreign)}{held}; stop one, or widen endpoint_port_range"
        )


class PortLeases:
    """Who may listen where, for one range on one address. Synchronous, one owner.

    A port that was just given back is the last to be leased again, so that nothing which
    still remembers it meets another engine there.
    """

    def __init__(self, first: int, last: int, *, address: str = LOOPBACK) -> None:
        """The range includes both ends. Raises ValueError: it is empty or no port range."""
        if not PORT_MIN <= first <= last <= PORT_MAX:
            raise ValueError(f"{first}-{last} is no port range: 1 to 65535, the lower end first")
        self.first = first
        self.last = last
        self.address = address
        self.foreign: tuple[int, ...] = ()
        """Ports that the last lease found other processes listening on, and skipped."""
        self._leased: set[int] = set()
        self._next = first

    @property
    def leased(self) -> frozenset[int]:
        return frozenset(self._leased)

    def lease(self) -> int:
        """The next free port that nobody listens on.

        Raises:
            PortsExhausted: every port is leased or listened on.
        """
        count = self.last - self.first + 1
        foreign: list[int] = []
        for step in range(count):
            port = self.first + (self._next - self.first + step) % count
            if port in self._leased:
                continue
            if self.is_taken(port):
                foreign.append(port)
                continue
            self.foreign = tuple(foreign)
            self._leased.add(port)
            self._next = port + 1
            return port
        self.foreign = tuple(foreign)
        raise PortsExhausted(
            self.first, self.last, leased_count=len(self._leased), foreign=self.foreign
        )

    def reserve(self, port: int) -> None:
        """Lease exactly this port, which an adopted engine already has. Twice is no error."""
        self._leased.add(port)

    def release(self, port: int) -> None:
        """Give a port back once its engine is proven gone. No error if it was not leased."""
        self._leased.discard(port)

    def is_taken(self, port: int) -> bool:
        """Whether somebody listens on the port, or may not be told from it.

        Binds without listening and with ``SO_REUSEADDR``, so that connections which still
        fade away do not count and no probe is ever seen as a listener.
        """
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.address, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    return True
                raise
        return False

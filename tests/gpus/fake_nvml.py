"""Something that looks like `pynvml`, with cards that a test describes."""

from __future__ import annotations

import threading
from types import SimpleNamespace

GIB = 1 << 30


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


class NVMLError_DriverNotLoaded(NVMLError):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


def card(index=0, total=24 * GIB, used=1 * GIB, free=23 * GIB, **changes):
    told = {
        "index": index,
        "uuid": f"GPU-{index}",
        "bus": b"0000:01:00.0",
        "name": "A card",
        "memory": None if total is None else SimpleNamespace(total=total, used=used, free=free),
        "processes": [],
    }
    return told | changes


class FakeNvml:
    NVMLError = NVMLError
    NVMLError_LibraryNotFound = NVMLError_LibraryNotFound
    NVMLError_DriverNotLoaded = NVMLError_DriverNotLoaded
    NVMLError_NotSupported = NVMLError_NotSupported

    def __init__(self, *cards, init_error=None):
        self.cards = list(cards)
        self.init_error = init_error
        self.error = None
        self.count = None
        self.inits = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def nvmlInit(self):
        self.inits += 1
        if self.init_error is not None:
            raise self.init_error

    def nvmlDeviceGetCount(self):
        self.go_on.wait(30)
        if self.error is not None:
            raise self.error
        return len(self.cards) if self.count is None else self.count

    def nvmlDeviceGetHandleByIndex(self, n):
        return self.cards[n]

    def nvmlDeviceGetIndex(self, handle):
        return handle["index"]

    def nvmlDeviceGetUUID(self, handle):
        return handle["uuid"]

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=handle["bus"])

    def nvmlDeviceGetName(self, handle):
        return handle["name"]

    def nvmlDeviceGetMemoryInfo(self, handle):
        if handle["memory"] is None:
            raise NVMLError_NotSupported
        return handle["memory"]

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        if handle["processes"] is None:
            raise NVMLError_NotSupported
        return [SimpleNamespace(pid=p, usedGpuMemory=used) for p, used in handle["processes"]]

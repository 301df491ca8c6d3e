"""A program beside capyctl that holds memory on a card, by torch or by the driver alone.

``python holding.py BYTES`` holds them on the first card, prints a line, and ends at end of input.
"""

from __future__ import annotations

import ctypes
import sys


def hold_by_torch(count: int) -> object:
    import torch

    held = torch.empty(count, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    return held


def hold_by_driver(count: int) -> object:
    driver = ctypes.CDLL("libcuda.so.1")
    device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    calls = (
        ("cuInit", 0),
        ("cuDeviceGet", ctypes.byref(device), 0),
        ("cuDevicePrimaryCtxRetain", ctypes.byref(context), device),
        ("cuCtxSetCurrent", context),
        ("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count)),
    )
    for name, *arguments in calls:
        # The device is a value by now: it is read when its call is made.
        status = getattr(driver, name)(*arguments)
        if status:
            raise OSError(f"{name} failed with CUDA error {status}")
    return context, address


def main() -> None:
    count = int(sys.argv[1])
    try:
        held, how = hold_by_torch(count), "torch"
    except (ImportError, AssertionError, RuntimeError):
        # Not here, or a torch for the CPU alone.
        held, how = hold_by_driver(count), "driver"
    print(f"held {count} by {how}", flush=True)
    sys.stdin.read()
    del held


if __name__ == "__main__":
    main()

"""The name of the control socket, short enough for any state directory."""

from __future__ import annotations

CONTROL_SOCKET = "control.sock"


def short_path(folder_fd: int, name: str = CONTROL_SOCKET) -> str:
    """A path of a socket file that the kernel takes however deep its folder lies.

    A socket's address holds 107 bytes; this one names the folder by an open descriptor,
    which must stay open until the socket is bound or connected.
    """
    return f"/proc/self/fd/{folder_fd}/{name}"

"""Where an engine's own search path ends: the system's folders, and nothing of the caller's."""

from __future__ import annotations

SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")

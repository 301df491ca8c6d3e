"""The profiles this machine publishes: its documents' and, simulated, its own."""

from __future__ import annotations

from capyctl.config.profiles import read_engines
from capyctl.config.role_settings import MachineSettings
from capyctl.domain.devices import Profile


class Publishing:
    """Profiles by name. `reload` reads ``engines.yaml`` again while the daemon runs."""

    def __init__(self, settings: MachineSettings, simulated: tuple[Profile, ...]) -> None:
        self._settings = settings
        self._simulated = simulated
        self.profiles: tuple[Profile, ...] = (*simulated, *settings.profiles)

    def find(self, name: str) -> Profile | None:
        return next((p for p in self.profiles if p.name == name), None)

    def reload(self) -> tuple[Profile, ...]:
        """Take in ``engines.yaml`` as it is now.

        Raises:
            InvalidDocument: it cannot be read or is invalid; nothing changed.
        """
        found = read_engines(self._settings.engines_path)
        declared = tuple(p for p in self._settings.profiles if p.source != "engines_file")
        self.profiles = (*self._simulated, *declared, *found)
        return self.profiles

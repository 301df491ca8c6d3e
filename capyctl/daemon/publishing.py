"""The profiles this machine publishes: its documents' and, simulated, its own."""

from __future__ import annotations

from capyctl.config.profiles import read_engines
from capyctl.config.role_settings import MachineSettings
from capyctl.daemon.retirements import Retirements
from capyctl.domain.devices import Profile


class Publishing:
    """Profiles by name. `reload` reads ``engines.yaml`` again while the daemon runs."""

    def __init__(
        self,
        settings: MachineSettings,
        simulated: tuple[Profile, ...],
        retirements: Retirements,
    ) -> None:
        self._settings = settings
        self._simulated = simulated
        self.retirements = retirements
        self.profiles: tuple[Profile, ...] = (*simulated, *settings.profiles)

    @property
    def offered(self) -> tuple[Profile, ...]:
        """Those that something new may run on: all but what is being removed."""
        return tuple(p for p in self.profiles if p.name not in self.retirements)

    def find(self, name: str) -> Profile | None:
        return next((p for p in self.offered if p.name == name), None)

    def reload(self) -> tuple[Profile, ...]:
        """Take in ``engines.yaml`` as it is now.

        Raises:
            InvalidDocument: it cannot be read or is invalid; nothing changed.
        """
        found = read_engines(self._settings.engines_path)
        declared = tuple(p for p in self._settings.profiles if p.source != "engines_file")
        gone = {p.name for p in self.profiles} - {p.name for p in (*declared, *found)}
        self.profiles = (*self._simulated, *declared, *found)
        for name in gone:
            self.retirements.end(name)
        return self.profiles

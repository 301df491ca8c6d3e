"""`resources`: stated charges, in their long and their short form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from capyctl.config.fields import Closed, Name, Size
from capyctl.domain.ids import DomainName
from capyctl.domain.specs import Charges, Phase, PhaseCharges
from capyctl.ledger.sizing_request import ShortResources

DEVICE_ID = r"gpu(0|[1-9][0-9]{0,2})"


class Device(Closed):
    id: str | None = Field(default=None, pattern=f"^{DEVICE_ID}$")
    sharing: Literal["shared", "exclusive"] | None = None


class Allocation(Closed):
    domain: Name
    bytes: Size
    host_kv_bytes: Size = 0
    """The part of `bytes` that holds cache moved to host RAM."""


class PhaseResources(Closed):
    allocations: list[Allocation]
    devices: list[Device] = Field(default_factory=list)

    def charges(self) -> Charges:
        held: dict[DomainName, int] = {}
        for allocation in self.allocations:
            name = DomainName(allocation.domain)
            held[name] = held.get(name, 0) + allocation.bytes
        return held


class LongForm(Closed):
    cold: PhaseResources
    ready: PhaseResources
    parking: PhaseResources
    parked: PhaseResources
    wake: PhaseResources

    def declared(self) -> PhaseCharges:
        return PhaseCharges(
            **{phase.value: getattr(self, phase.value).charges() for phase in Phase}
        )

    def device_ids(self) -> frozenset[str]:
        return frozenset(
            device.id
            for phase in Phase
            for device in getattr(self, phase.value).devices
            if device.id is not None
        )

    @property
    def exclusive(self) -> bool:
        """Whether any phase wants its device alone. An instance runs on one device throughout."""
        devices = (device for phase in Phase for device in getattr(self, phase.value).devices)
        return any(device.sharing == "exclusive" for device in devices)


class ShortForm(Closed):
    gpu: Size = 0
    ram: Size = 0

    def declared(self) -> ShortResources:
        return ShortResources(gpu_bytes=self.gpu, ram_bytes=self.ram)

    def device_ids(self) -> frozenset[str]:
        return frozenset()

    @property
    def exclusive(self) -> bool:
        return False


def _form(value: Any) -> str:
    """Short when any of its own keys is there, so that an unknown key is named in that form."""
    if isinstance(value, ShortForm):
        return "short"
    short = isinstance(value, Mapping) and value.keys() & ShortForm.model_fields.keys()
    return "short" if short else "long"


Resources = Annotated[
    Annotated[LongForm, Tag("long")] | Annotated[ShortForm, Tag("short")], Discriminator(_form)
]

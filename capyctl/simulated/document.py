"""What ``--simulate`` takes: a short text, or a YAML or JSON file that describes a machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from capyctl.domain.units import GIB, gib
from capyctl.simulated.behaviour import (
    BadDocument,
    Behaviour,
    read_behaviour,
    read_bytes,
    read_count,
    shown,
    write_behaviour,
)
from capyctl.simulated.document_text import DOCUMENT_BYTES_MAX, parse_text

GPUS_MAX = 64
MEMORY_BYTES_MIN = 2 * GIB
MODELS_MAX = 1024
NAME_CHARACTERS_MAX = 200
GPUS_DIGITS_MAX = 9
DEFAULT_CARD_BYTES = 24 * GIB
DEFAULT_RAM_BYTES = 256 * GIB

_KEYS = ("gpus", "memory", "ram", "unified", "engines", "models")


@attrs.frozen(kw_only=True)
class SimulatedGpu:
    index: int
    total_bytes: int
    name: str
    used_bytes: int = 0
    """Held by something that is no engine of ours."""

    @property
    def id(self) -> str:
        return f"gpu{self.index}"

    @property
    def uuid(self) -> str:
        return f"GPU-51e0{self.index:04x}-0000-4000-8000-000000000000"


def is_simulated_gpu(uuid: str) -> bool:
    """Whether it is the UUID of a simulated GPU; no real one is like these."""
    return re.fullmatch(r"GPU-51e0[0-9a-f]{4}-0000-4000-8000-0{12}", uuid) is not None


@attrs.frozen(kw_only=True)
class SimulatedDocument:
    """A simulated machine and the behaviour of the engines on it."""

    gpus: tuple[SimulatedGpu, ...]
    ram_bytes: int
    unified: bool = False
    engines: Behaviour = attrs.field(factory=Behaviour)
    """Of every engine that ``models`` does not name."""
    models: Mapping[str, Behaviour] = attrs.field(factory=dict)
    """By served name, model path, or last part of a model path."""

    def behaviour_of(self, model_path: str, served_names: Sequence[str] = ()) -> Behaviour:
        path = model_path.rstrip("/")
        for name in (*served_names, path, os.path.basename(path)):
            if name in self.models:
                return self.models[name]
        return self.engines

    def domain_of(self, gpu: SimulatedGpu) -> str:
        return "unified" if self.unified else gpu.id


def parse_simulate(text: str) -> SimulatedDocument:
    """The machine that ``gpus=2,memory=80GiB,ram=512GiB`` or the path of a file describes.

    An empty text is one 24 GiB card and 256 GiB of RAM; ``unified=128GiB`` is a machine whose
    GPU shares that much memory with the processor. Blocks while it reads a file.

    Raises:
        BadDocument: the message names the key, or the file and why it cannot be read.
    """
    text = text.strip()
    if text.startswith("{"):
        return read_document(parse_text(text, "the document"))
    if "=" not in text and text:
        return read_file(Path(text))
    stated: dict[str, object] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in ("gpus", "memory", "ram", "unified"):
            raise BadDocument(
                f"{shown(part)} is not known; gpus=N, memory=SIZE, ram=SIZE and unified=SIZE are, "
                "or the path of a document"
            )
        if key in stated:
            raise BadDocument(f"{key} is stated twice")
        is_count = key == "gpus" and value.isdecimal() and len(value) <= GPUS_DIGITS_MAX
        stated[key] = int(value) if is_count else value
    return read_document(stated)


def read_file(path: Path) -> SimulatedDocument:
    """Raises:
    BadDocument: the file cannot be read or does not describe a machine.
    """
    try:
        # Its size says nothing of a device, which may have no end.
        with path.open("rb") as file:
            body = file.read(DOCUMENT_BYTES_MAX + 1)
        if len(body) > DOCUMENT_BYTES_MAX:
            raise BadDocument(f"{path} is larger than {DOCUMENT_BYTES_MAX} bytes")
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BadDocument(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise BadDocument(f"{path}: {error.strerror}") from error
    return read_document(parse_text(text, str(path)))


def read_document(stated: object) -> SimulatedDocument:
    """Raises:
    BadDocument: the message names the key.
    """
    if stated is None:
        stated = {}
    if not isinstance(stated, Mapping):
        raise BadDocument("a document is a mapping, with keys such as gpus and ram")
    unknown = sorted(str(key) for key in stated if key not in _KEYS)
    if unknown:
        raise BadDocument(
            f"{unknown[0][:NAME_CHARACTERS_MAX]} is not known; known are {', '.join(_KEYS)}"
        )
    unified, ram_bytes = _read_ram(stated)
    engines = read_behaviour(stated.get("engines"), "engines", Behaviour())
    models = stated.get("models") or {}
    if not isinstance(models, Mapping):
        raise BadDocument("models must be a mapping of model names")
    if len(models) > MODELS_MAX:
        raise BadDocument(f"models has {len(models)} entries; at most {MODELS_MAX} are possible")
    return SimulatedDocument(
        gpus=_read_gpus(stated, unified, ram_bytes),
        ram_bytes=ram_bytes,
        unified=unified,
        engines=engines,
        models={
            str(name): read_behaviour(behaviour, f"models.{name}", engines)
            for name, behaviour in models.items()
        },
    )


def _read_ram(stated: Mapping[str, object]) -> tuple[bool, int]:
    """Whether the machine is unified, and its RAM."""
    unified = stated.get("unified", False)
    ram_bytes = read_memory(stated.get("ram", DEFAULT_RAM_BYTES), "ram")
    if unified in (False, "false", "no"):
        return False, ram_bytes
    if "memory" in stated:
        raise BadDocument("memory is that of a card; on a unified machine state ram or unified")
    if unified in (True, "true", "yes"):
        return True, ram_bytes
    if "ram" in stated:
        raise BadDocument("unified and ram both state the memory; leave one of them out")
    return True, read_memory(unified, "unified")


def _read_gpus(
    stated: Mapping[str, object], unified: bool, ram_bytes: int
) -> tuple[SimulatedGpu, ...]:
    memory_bytes = read_memory(stated.get("memory", DEFAULT_CARD_BYTES), "memory")
    gpus = stated.get("gpus", 1)
    rows = gpus if isinstance(gpus, list) else [{}] * read_count(gpus, "gpus", 0, GPUS_MAX)
    if len(rows) > GPUS_MAX:
        raise BadDocument(f"gpus has {len(rows)} entries; at most {GPUS_MAX} are possible")
    if unified and len(rows) != 1:
        raise BadDocument(f"gpus is {len(rows)}; a unified machine has one")
    found = []
    for index, row in enumerate(rows):
        at = f"gpus[{index}]"
        if not isinstance(row, Mapping) or set(row) - {"memory", "name", "used"}:
            raise BadDocument(f"{at} may have memory, name and used")
        total = ram_bytes if unified else read_memory(row.get("memory", memory_bytes), at)
        used = read_bytes(row.get("used", 0), f"{at}.used")
        if used > total:
            raise BadDocument(f"{at}.used is {gib(used)} of {gib(total)}")
        name = row.get("name", f"Simulated {gib(total)}")
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
            raise BadDocument(
                f"{at}.name is {shown(name)}; a text of 1 to {NAME_CHARACTERS_MAX} characters is "
                "expected"
            )
        found.append(SimulatedGpu(index=index, total_bytes=total, name=name, used_bytes=used))
    return tuple(found)


def read_memory(value: object, at: str) -> int:
    """Raises:
    BadDocument: no size, or one that no machine could work with.
    """
    found = read_bytes(value, at)
    if found < MEMORY_BYTES_MIN:
        raise BadDocument(f"{at} is {gib(found)}; at least {gib(MEMORY_BYTES_MIN)} are needed")
    return found


def room_of(document: SimulatedDocument) -> dict[str, int]:
    """Bytes of each memory domain that engines can draw, what others use taken off."""
    used = sum(gpu.used_bytes for gpu in document.gpus)
    if document.unified:
        return {"unified": document.ram_bytes - used}
    cards = {gpu.id: gpu.total_bytes - gpu.used_bytes for gpu in document.gpus}
    return {"system": document.ram_bytes} | cards


def write_document(document: SimulatedDocument) -> dict[str, Any]:
    """The mapping that `read_document` makes this document of."""
    return {
        "gpus": [
            {"name": gpu.name, "used": gpu.used_bytes}
            | ({} if document.unified else {"memory": gpu.total_bytes})
            for gpu in document.gpus
        ],
        "ram": document.ram_bytes,
        "unified": document.unified,
        "engines": write_behaviour(document.engines),
        "models": {name: write_behaviour(found) for name, found in document.models.items()},
    }

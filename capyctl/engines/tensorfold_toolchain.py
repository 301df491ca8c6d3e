"""What TensorFold builds its kernels with: looked for where a launch would find it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from capyctl.engines.closed_path import SYSTEM_PATH
from capyctl.engines.installations import Installation, find_cuda_home

TOOLS = (("ninja",), ("nvcc",), ("c++", "g++"))
"""Each of these by one of its names."""


def find_cuda_beside(installation: Installation, cuda_home: str | None) -> str | None:
    """The CUDA toolkit of the machine, else one that pip put into the environment."""
    found = find_cuda_home(cuda_home)
    if found is not None or installation.site_packages is None:
        return found
    folders = sorted(Path(installation.site_packages, "nvidia").glob("cu*"), reverse=True)
    return next((home for one in folders if (home := find_cuda_home(str(one), ""))), None)


def missing_tools(
    installation: Installation, cuda_home: str | None, *, system: Sequence[str] | None = None
) -> tuple[str, ...]:
    """The tools that no launch of this installation would find, ``c++ or g++`` and so on."""
    folders = [os.path.dirname(installation.executable)]
    if cuda_home is not None:
        folders.append(os.path.join(cuda_home, "bin"))
    folders += SYSTEM_PATH if system is None else system
    return tuple(
        " or ".join(names)
        for names in TOOLS
        if not any(_is_program(folder, name) for folder in folders for name in names)
    )


def _is_program(folder: str, name: str) -> bool:
    path = os.path.join(folder, name)
    return os.path.isfile(path) and os.access(path, os.X_OK)

"""Engines installed in temporary folders: real files, tiny programs."""

from __future__ import annotations

import sys
from pathlib import Path


def llama_server(folder: Path, script: str) -> Path:
    """An executable `llama-server` that runs ``script`` with the system's shell."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "llama-server"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


TELLS_VERSION = 'echo "version: 0.6.0 (build 7, commit abc1234)" >&2; echo noise'


def python_environment(root: Path, **distributions: str) -> Path:
    """A virtual environment with metadata of ``distributions`` (name to version)."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = root / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix, 'bin')}\n")
    (root / "bin" / "python3").symlink_to(Path(sys.base_prefix, "bin", version))
    for name, told in distributions.items():
        install(root, site, name, told)
    return root


def install(root: Path, site: Path, name: str, version: str) -> None:
    package = site / name.partition("_")[0]
    package.mkdir(exist_ok=True)
    (package / "engine.py").write_text(f"# {name}\n")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n\nText\n"
    )
    (info / "RECORD").write_text(
        f"{package.name}/engine.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n"
        f"{package.name}/__pycache__/engine.cpython-311.pyc,,\n"
    )
    script = root / "bin" / package.name
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)


def with_sleep_allocator(root: Path) -> Path:
    (site,) = root.glob("lib/python3*/site-packages")
    folder = site / "vllm" / "device_allocator"
    folder.mkdir()
    (folder / "cumem.py").write_text("")
    return root


def with_memory_saver(root: Path) -> Path:
    (site,) = root.glob("lib/python3*/site-packages")
    install(root, site, "torch_memory_saver", "0.0.9")
    return root


def with_tools(root: Path, *names: str) -> Path:
    """Programs in the environment's `bin`; ``nvidia/cu13/bin/nvcc`` goes where pip puts it."""
    (site,) = root.glob("lib/python3*/site-packages")
    for name in names:
        tool = site / name if "/" in name else root / "bin" / name
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o755)
    return root

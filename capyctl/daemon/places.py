"""The folders and programs that a machine's settings name: looked at before its role serves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from capyctl.config.problems import ConfigProblem, InvalidDocument, ProblemClass
from capyctl.config.role_settings import MachineSettings
from capyctl.domain.devices import Profile
from capyctl.engines.profile_checks import why_not_taken

Say = Callable[..., None]


def check_places(settings: MachineSettings, role: str, *, simulated: bool, log: Say) -> None:
    """Make the models directory where it is missing, and warn of what cannot be used. Blocks.

    A disk that is away for a while ends no role: its engines may run, and others may be started.

    Args:
        role: the kind of the document, whose settings are named.
        simulated: the machine has engines of its own, and those of the settings do not run.
        log: told of an event and its ``message``.

    Raises:
        InvalidDocument: a file is where a folder has to be.
    """
    block = "host." if role == "standalone" else ""
    _check_models(Path(settings.models_root), f"{block}model_store.path", role, log)
    root = settings.sources.root
    if root is not None:
        _check_no_file(Path(settings.models_root) / root, f"{block}model_sources.path", role)
    token = settings.sources.token_file
    if token is not None and not os.path.isfile(token):
        setting = f"{block}model_sources.huggingface_token_file"
        log("token_file_unusable", message=f"{setting}: {token} is not there: write the token")
    if not simulated:
        for profile in settings.profiles:
            for problem in _problems_of(profile):
                log("engine_unusable", profile=profile.name, message=problem)


def _check_models(root: Path, setting: str, role: str, log: Say) -> None:
    _check_no_file(root, setting, role)
    try:
        if not root.exists():
            root.mkdir(parents=True)
            log("models_root_made", message=f"{setting}: {root} was not there, and is made: empty")
        with os.scandir(root):
            pass
    except OSError as problem:
        log(
            "models_root_unusable",
            message=f"{setting}: {root} cannot be used ({problem.strerror}): no model in it can be "
            f"started. Make it readable for user {os.geteuid()}, or name another one with "
            "--models-root",
        )


def _check_no_file(folder: Path, setting: str, role: str) -> None:
    if not os.path.isfile(folder):
        return
    detail = f"{folder} is a file: name the folder, or move the file away"
    raise InvalidDocument(ConfigProblem(kind=ProblemClass.IO, path=setting, detail=detail), role)


def _problems_of(profile: Profile) -> Iterator[str]:
    again = "name another with local_engine, or register it with `capyctl engine add`"
    program = profile.executable[0]
    if not os.path.isfile(program) or not os.access(program, os.X_OK):
        yield f"{program} is not there or cannot be run, and every start on it fails: {again}"
    forbidden = why_not_taken(profile)
    if forbidden is not None:
        yield f"{forbidden}: take it out, or no start on it comes to anything"
    home = profile.cuda_home
    if home is not None and not os.path.isdir(home):
        yield f"cuda_home: {home} is not a folder: name the CUDA toolkit"

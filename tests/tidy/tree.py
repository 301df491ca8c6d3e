"""The checkout as the tidy tests see it: where it is and which files belong to it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("actors", "capyctl")
BUILT = {"build", "dist", "capyctl.egg-info"}


def project_files(*patterns: str) -> list[Path]:
    """Files of the project whose name or path matches one of ``patterns``.

    With git: what is tracked, or would be offered for tracking. Without, as in an unpacked
    archive: all but hidden folders and what a build leaves behind.
    """
    names = tracked() if (ROOT / ".git").exists() and shutil.which("git") else found()
    return [
        ROOT / name
        for name in sorted(names)
        if any(Path(name).match(pattern) for pattern in patterns) and (ROOT / name).is_file()
    ]


def tracked() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60,
    )
    return set(filter(None, listed.stdout.decode().split("\0")))


def found() -> set[str]:
    names = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
    return {
        str(name)
        for name in names
        if not BUILT.intersection(name.parts[:1])
        and not any(part.startswith(".") and part != ".ci" for part in name.parts[:-1])
    }


def production_modules() -> list[Path]:
    return [path for top in PACKAGES for path in sorted((ROOT / top).rglob("*.py"))]


def shown(path: Path) -> str:
    """The path as a test id and in messages: relative to the checkout."""
    return str(path.relative_to(ROOT))

"""What is installed: the licence, both packages in the wheel, locks that fit pyproject.toml."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.tree import PACKAGES, ROOT, production_modules, shown

APACHE_2_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""The text as the Apache Software Foundation publishes it."""
PIN = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+]+)")
WHEEL = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
WHEEL_S_MAX = 120


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name: str) -> dict[str, str]:
    """Version by name. Fails the test on a line that is more than a pin: it could not install
    alike on every kind of machine."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        if line and not line.startswith("#"):
            pin = PIN.fullmatch(line)
            assert pin, f"{name}: {line!r} is not name==version"
            found[canonicalize_name(pin[1])] = pin[2]
    return found


def test_the_licence_is_apache_2():
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_SHA256
    assert project()["license"] == "Apache-2.0"


@pytest.mark.parametrize(
    ("lock", "extras"), [("requirements.lock", ()), ("requirements-dev.lock", ("dev",))]
)
def test_locks_fit_what_is_asked_for(lock, extras):
    asked = [*project()["dependencies"]]
    for extra in extras:
        asked += project()["optional-dependencies"][extra]
    locked = pins(lock)

    for requirement in map(Requirement, asked):
        assert locked[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    assert "capyctl" not in locked


def test_the_development_lock_holds_the_other_one():
    assert pins("requirements.lock").items() <= pins("requirements-dev.lock").items()


def test_every_dependency_has_its_reason():
    asked = project()["dependencies"] + project()["optional-dependencies"]["dev"]
    page = canonicalize_name((ROOT / "docs/design/dependencies.md").read_text())
    names = [canonicalize_name(Requirement(line).name) for line in asked]

    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.slow
def test_the_wheel_holds_both_packages_and_nothing_else(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in (*PACKAGES, "tests", "benchmarks"):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
    built = subprocess.run(
        [*WHEEL, "--wheel-dir", str(tmp_path), str(source)],
        capture_output=True,
        text=True,
        timeout=WHEEL_S_MAX,
        check=False,
    )
    assert built.returncode == 0, built.stderr

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert {shown(path) for path in production_modules()} <= names
    assert {"capyctl/py.typed", "actors/py.typed"} <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)

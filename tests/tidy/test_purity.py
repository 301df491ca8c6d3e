"""What really gets loaded, in a fresh interpreter: more than the imports of a file say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tidy.tree import ROOT, production_modules

# Imports a package and all its modules, then tells what of the unwanted came with which of them.
LOAD = """
import importlib, pkgutil, sys
package, *unwanted = sys.argv[1:]
top = importlib.import_module(package)
names = [package] + [m.name for m in pkgutil.walk_packages(top.__path__, package + ".")]
for name in names:
    importlib.import_module(name)
    loaded = sorted(set(unwanted) & set(sys.modules))
    if loaded:
        sys.exit(f"{name} loads {', '.join(loaded)}")
print(len(names))
"""
PURE = ("domain", "messages", "machines", "ledger", "gates")
OUTSIDE = ("trio", "pydantic", "quart", "yaml", "msgspec", "httptools", "asyncio", "actors")
HEAVY = ("trio", "quart", "pydantic", "yaml", "msgspec", "hypercorn", "asyncio", "cryptography")


def load(package: str, unwanted: tuple[str, ...]) -> int:
    """Number of modules loaded; fails the test when one of ``unwanted`` came with them."""
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD, package, *unwanted],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr
    return int(loaded.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("package", PURE)
def test_pure_floors_load_nothing_of_the_outside(package):
    assert load(f"capyctl.{package}", OUTSIDE) >= 1


@pytest.mark.slow
def test_the_command_starts_without_heavy_libraries():
    """Trio alone costs 140 ms; commands import what they need when they run."""
    modules = [path for path in production_modules() if "capyctl/cli/" in path.as_posix()]

    assert load("capyctl.cli", HEAVY) == len(modules)


@pytest.mark.slow
def test_what_trusts_certificates_does_not_load_what_makes_them():
    """Only making keys and certificates takes the large package; TLS does without."""
    names = ("contexts", "peers", "handshake")
    load_them = "import sys; " + "; ".join(f"import capyctl.link.{name}" for name in names)
    found = subprocess.run(
        [sys.executable, "-c", f"{load_them}; sys.exit('cryptography' in sys.modules)"],
        cwd=ROOT,
        check=False,
    )

    assert found.returncode == 0


@pytest.mark.slow
def test_a_forbidden_load_is_seen():
    with pytest.raises(AssertionError, match="json loads json"):
        load("json", ("json",))

"""Registering SGLang and TensorFold: what they need, whether they park, how they are started."""

import pytest

from capyctl.engines import tensorfold_toolchain
from capyctl.engines.installations import deep_park_probe, locate
from capyctl.engines.tensorfold_toolchain import find_cuda_beside, missing_tools
from tests.engines_unit.installed import python_environment, with_memory_saver, with_tools
from tests.engines_unit.registered import read_engines_file
from tests.engines_unit.test_registration import add, document, refused  # noqa: F401

TOOLS = ("ninja", "nvcc", "c++")


@pytest.fixture
def sglang(tmp_path):
    return with_memory_saver(python_environment(tmp_path / "sg", sglang="0.5.21"))


@pytest.fixture
def tensorfold(tmp_path):
    return python_environment(tmp_path / "fold", tensorfold="0.6.5")


@pytest.mark.parametrize("inside", ["", "bin/python3"])
def test_an_sglang_is_started_by_its_interpreter(sglang, document, inside):  # noqa: F811
    added = add(sglang / inside, document)
    assert (added.profile, added.engine, added.version) == ("sglang", "sglang", "0.5.21")
    assert (added.deep_park, added.deep_park_probe, added.custom) == (True, "supported", False)
    profile = read_engines_file(document).profiles["sglang"].to_profile("sglang")
    assert profile.executable == (str(sglang / "bin" / "python3"),)
    assert profile.deep_park


def test_without_its_memory_saver_an_sglang_does_not_park(tmp_path, document):  # noqa: F811
    root = python_environment(tmp_path / "sg", sglang="0.5.23")
    assert "torch_memory_saver" in deep_park_probe(locate(root))
    added = add(root, document)
    assert (added.deep_park, added.custom) == (False, True)
    assert add(root, document, name="forced", deep_park="enabled").deep_park


def test_a_tensorfold_needs_what_it_builds_its_kernels_with(
    tensorfold,
    document,  # noqa: F811
    monkeypatch,
):
    monkeypatch.setattr(tensorfold_toolchain, "SYSTEM_PATH", ())
    message = refused("toolchain_missing", tensorfold, document, cuda_home=str(tensorfold))
    assert "ninja" in message
    with_tools(tensorfold, *TOOLS)
    added = add(tensorfold, document)
    assert (added.engine, added.version, added.deep_park) == ("tensorfold", "0.6.5", False)
    profile = read_engines_file(document).profiles["tensorfold"].to_profile("x")
    assert profile.executable == (str(tensorfold / "bin" / "tensorfold"),)


def test_a_tensorfold_is_never_registered_to_park(tensorfold, document):  # noqa: F811
    with_tools(tensorfold, *TOOLS)
    message = refused("capability_missing", tensorfold, document, deep_park="enabled")
    assert "started again" in message


@pytest.mark.parametrize(
    ("tools", "missing"),
    [
        ((), ("ninja", "nvcc", "c++ or g++")),
        (("ninja", "nvcc"), ("c++ or g++",)),
        (("ninja", "g++"), ("nvcc",)),
        (("ninja", "nvidia/cu13/bin/nvcc", "g++"), ()),
        (("ninja", "nvidia/cu12/bin/nvcc", "nvidia/cu13/bin/nvcc", "c++"), ()),
    ],
)
def test_tools_are_looked_for_where_a_launch_would_find_them(
    tensorfold, monkeypatch, tools, missing
):
    with_tools(tensorfold, *tools)
    found = locate(tensorfold)
    monkeypatch.setattr(tensorfold_toolchain, "find_cuda_home", only_the_named)
    home = find_cuda_beside(found, None)
    assert missing_tools(found, home, system=()) == missing
    if any("cu13" in tool for tool in tools):
        assert home is not None
        assert home.endswith("nvidia/cu13")


def only_the_named(cuda_home, fallback="/usr/local/cuda"):
    """As `find_cuda_home`, on a machine without a toolkit of its own."""
    from capyctl.engines.installations import find_cuda_home

    return find_cuda_home(cuda_home, "")


def test_a_tool_that_cannot_be_run_is_none(tensorfold):
    with_tools(tensorfold, *TOOLS)
    (tensorfold / "bin" / "ninja").chmod(0o644)
    assert missing_tools(locate(tensorfold), None, system=()) == ("ninja",)

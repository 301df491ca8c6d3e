import os

import pytest

from capyctl.engines.fingerprint import Unfingerprintable, find_drift, measure_installation
from tests.engines_unit.installed import install, llama_server, python_environment


@pytest.fixture
def llama(tmp_path):
    program = llama_server(tmp_path / "bin", "exit 0")
    (tmp_path / "bin" / "libggml.so").write_text("a")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libllama.so.1").write_text("b")
    (tmp_path / "lib" / "libllama.so").symlink_to("libllama.so.1")
    (tmp_path / "lib" / "notes.txt").write_text("c")
    return program


def drift(before, program, family="llamacpp"):
    return find_drift(before, family, str(program))


def test_llama_cpp_is_its_program_and_libraries(llama, tmp_path):
    before = measure_installation("llamacpp", str(llama))
    names = [os.path.relpath(path, tmp_path) for path, _ in before.entries]
    assert names == ["bin/libggml.so", "bin/llama-server", "lib/libllama.so", "lib/libllama.so.1"]
    assert drift(before, llama) is None
    (tmp_path / "lib" / "notes.txt").write_text("changed")
    assert drift(before, llama) is None


@pytest.mark.parametrize("name", ["bin/llama-server", "bin/libggml.so", "lib/libllama.so.1"])
def test_changed_bytes_are_drift(llama, tmp_path, name):
    before = measure_installation("llamacpp", str(llama))
    (tmp_path / name).write_text("other")
    assert name in drift(before, llama)
    assert measure_installation("llamacpp", str(llama)).digest != before.digest


def test_a_link_is_its_text(llama, tmp_path):
    before = measure_installation("llamacpp", str(llama))
    link = tmp_path / "lib" / "libllama.so"
    link.unlink()
    link.symlink_to("libllama.so.2")
    assert "libllama.so" in drift(before, llama)


def test_new_and_missing_files_are_drift(llama, tmp_path):
    before = measure_installation("llamacpp", str(llama))
    (tmp_path / "bin" / "libmore.so").write_text("x")
    assert "libmore.so" in drift(before, llama)
    llama.unlink()
    assert "llama-server" in drift(before, llama)
    with pytest.raises(Unfingerprintable):
        measure_installation("llamacpp", str(llama))


def test_the_same_bytes_with_another_time_are_no_drift(llama):
    before = measure_installation("llamacpp", str(llama))
    os.utime(llama, ns=(1, 1))
    assert drift(before, llama) is None


def test_a_python_engine_is_its_distribution_and_its_neighbours(tmp_path):
    root = python_environment(tmp_path / "env", vllm="0.30.0", torch="2.13.0")
    program = root / "bin" / "vllm"
    before = measure_installation("vllm", str(program))
    assert drift(before, program, "vllm") is None
    (site,) = root.glob("lib/*/site-packages")
    (site / "torch" / "engine.py").write_text("patched")
    assert drift(before, program, "vllm") is None
    (site / "torch-2.13.0.dist-info").rename(site / "torch-2.13.1.dist-info")
    assert "torch-2.13" in drift(before, program, "vllm")
    (site / "torch-2.13.1.dist-info").rename(site / "torch-2.13.0.dist-info")
    install(root, site, "extra", "1")
    assert "extra" in drift(before, program, "vllm")


def test_a_patched_engine_is_drift(tmp_path):
    root = python_environment(tmp_path / "env", vllm="0.30.0")
    program = root / "bin" / "vllm"
    before = measure_installation("vllm", str(program))
    (engine,) = root.glob("lib/*/site-packages/vllm/engine.py")
    engine.write_text("patched")
    assert "vllm/engine.py" in drift(before, program, "vllm")

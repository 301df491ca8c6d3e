import stat
from pathlib import Path

import pytest

from capyctl.engines.preparation import NotPrepared, prepare_launch
from tests.engines_unit.scenes import order, surroundings


@pytest.fixture
def place(tmp_path):
    return surroundings("bare", state_dir=str(tmp_path / "state"))


def prepare(place, **settings):
    prepare_launch(
        order("llamacpp", devices=(), **settings), place, system_config=settings_file(place)
    )


def settings_file(place):
    return Path(place.state_dir).parent / "config.ini"


def refused(code, place, **settings):
    with pytest.raises(NotPrepared) as caught:
        prepare(place, **settings)
    assert caught.value.code == code
    return caught.value.detail


def test_llama_cpps_folders_are_its_own(place):
    prepare(place)
    prepare(place)

    for name in ("config", "cache"):
        folder = settings_file(place).parent / "state" / "engines" / "llamacpp" / name
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_settings_that_nobody_ordered_are_in_the_way(place):
    prepare(place)
    config = settings_file(place).parent / "state" / "engines" / "llamacpp" / "config"
    (config / "llama.cpp").mkdir()

    assert "llama.cpp" in refused("engine_config_file", place)

    (config / "llama.cpp").rmdir()
    settings_file(place).write_text("")
    assert "config.ini" in refused("engine_config_file", place)


def test_a_link_in_place_of_a_folder_is_refused(place, tmp_path):
    prepare(place)
    cache = tmp_path / "state" / "engines" / "llamacpp" / "cache"
    cache.rmdir()
    cache.symlink_to(tmp_path)

    refused("launch_failed", place)


def test_approved_files_are_looked_at_through_links(place, tmp_path):
    (tmp_path / "loras").mkdir()
    (tmp_path / "loras" / "a.gguf").symlink_to("/etc/hostname")
    args = ("--lora", str(tmp_path / "loras" / "a.gguf"))
    approved = (str(tmp_path / "loras"),)

    assert "link" in refused(
        "engine_argument_rejected", place, extra_args=args, approved_paths=approved
    )

    (tmp_path / "loras" / "a.gguf").unlink()
    (tmp_path / "loras" / "a.gguf").write_text("")
    prepare(place, extra_args=args, approved_paths=approved)

"""The folder of capyctl's entries: made whole, repaired with a warning, verified at launches."""

import os
import stat
import sys

import pytest

from capyctl.engines import runtime_dir
from capyctl.engines.preparation import NotPrepared, prepare_launch, remove_stale_locks
from capyctl.engines.runtime_dir import (
    ENTRIES,
    MARKER,
    RuntimeDamaged,
    RuntimeRefused,
    ensure_runtime,
    entry_texts,
    verify_runtime,
)
from tests.engines_unit.scenes import order, surroundings


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def test_it_is_made_whole_and_ours_alone(tmp_path):
    made = ensure_runtime(tmp_path)
    assert (made.path, made.warnings) == (tmp_path / "runtime", ())
    assert mode(made.path) == 0o700
    assert {entry.name for entry in made.path.iterdir()} == {MARKER, *ENTRIES}
    assert {mode(entry) for entry in made.path.iterdir()} == {0o600}
    assert {name: (made.path / name).read_bytes() for name in ENTRIES} == entry_texts()
    assert [entry.name for entry in tmp_path.iterdir()] == ["runtime"]
    verify_runtime(tmp_path)


def test_again_it_changes_nothing(tmp_path):
    first = ensure_runtime(tmp_path)
    before = {entry.name: entry.stat().st_ino for entry in first.path.iterdir()}
    again = ensure_runtime(tmp_path)
    assert again == first
    assert {entry.name: entry.stat().st_ino for entry in first.path.iterdir()} == before


def edit(path):
    path.write_text(path.read_text() + "\nprint('hello')\n")


def open_to_others(path):
    path.chmod(0o664)


def remove(path):
    path.unlink()


def link_elsewhere(path):
    path.unlink()
    path.symlink_to("/dev/null")


@pytest.mark.parametrize("tamper", [edit, open_to_others, remove, link_elsewhere])
@pytest.mark.parametrize("name", ENTRIES)
def test_tampering_refuses_a_launch_and_is_repaired_with_a_warning(tmp_path, name, tamper):
    path = ensure_runtime(tmp_path).path / name
    tamper(path)
    with pytest.raises(RuntimeDamaged, match=name):
        verify_runtime(tmp_path)

    repaired = ensure_runtime(tmp_path)

    (warning,) = repaired.warnings
    assert str(path) in warning
    assert path.read_bytes() == entry_texts()[name]
    assert not path.is_symlink()
    verify_runtime(tmp_path)
    assert ensure_runtime(tmp_path).warnings == ()


def test_a_folder_open_to_others_is_closed_with_a_warning(tmp_path):
    folder = ensure_runtime(tmp_path).path
    folder.chmod(0o755)
    with pytest.raises(RuntimeDamaged, match="open to others"):
        verify_runtime(tmp_path)
    (warning,) = ensure_runtime(tmp_path).warnings
    assert "0700" in warning
    assert mode(folder) == 0o700


def test_strangers_are_told_of_and_left(tmp_path):
    stranger = ensure_runtime(tmp_path).path / "notes.txt"
    stranger.write_text("mine")
    (warning,) = ensure_runtime(tmp_path).warnings
    assert "notes.txt" in warning
    assert stranger.exists()


def test_an_upgrade_is_no_tampering(tmp_path, monkeypatch):
    ensure_runtime(tmp_path)
    newer = {name: text + b"# newer\n" for name, text in entry_texts().items()}
    monkeypatch.setattr(runtime_dir, "entry_texts", lambda: newer)
    with pytest.raises(RuntimeDamaged):
        verify_runtime(tmp_path)
    upgraded = ensure_runtime(tmp_path)
    assert upgraded.warnings == ()
    assert (upgraded.path / ENTRIES[0]).read_bytes().endswith(b"# newer\n")
    assert ensure_runtime(tmp_path).warnings == ()


def test_a_damaged_marker_is_written_again(tmp_path):
    marker = ensure_runtime(tmp_path).path / MARKER
    marker.write_text("{")
    ensure_runtime(tmp_path)
    assert ENTRIES[0] in marker.read_text()


def test_a_folder_without_the_marker_is_refused(tmp_path):
    (tmp_path / "runtime").mkdir(mode=0o700)
    with pytest.raises(RuntimeRefused, match=MARKER):
        ensure_runtime(tmp_path)
    assert list((tmp_path / "runtime").iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_no_folder_of_ours_is_refused(tmp_path, kind):
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "runtime").symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "runtime").write_text("")
    with pytest.raises(RuntimeRefused, match="move it away"):
        ensure_runtime(tmp_path)


def test_a_start_that_breaks_off_leaves_no_half(tmp_path, monkeypatch):
    def fails(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runtime_dir, "_write", fails)
    with pytest.raises(OSError, match="space"):
        ensure_runtime(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("family", ["vllm", "sglang"])
def test_a_launch_needs_its_entry_and_its_interpreter(tmp_path, family):
    place = surroundings(state_dir=str(tmp_path))
    ordered = order(family, executable=(str(tmp_path / "bin" / "program"),))
    with pytest.raises(NotPrepared, match=r"bin/python3 does not exist"):
        prepare_launch(ordered, place)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    with pytest.raises(NotPrepared, match="runtime"):
        prepare_launch(ordered, place)
    prepare_launch(order(family, direct=True), place)
    ensure_runtime(tmp_path)
    prepare_launch(ordered, place)


def test_folders_of_a_launch_are_its_own(tmp_path):
    place = surroundings(state_dir=str(tmp_path))
    prepare_launch(order("sglang", direct=True), place)
    prepare_launch(order("tensorfold", build_fingerprint="0.6.5"), place)
    assert mode(tmp_path / "rendezvous") == 0o700
    assert mode(tmp_path / "engines/tensorfold/0.6.5/torch_extensions") == 0o700


def test_a_lock_stays_while_its_builder_lives(tmp_path):
    """The trap is armed: every later build waits for a lock that nobody removes."""
    lock = tmp_path / "kernels" / "lock"
    lock.parent.mkdir()
    lock.touch()
    reading, writing = os.pipe()
    builder = os.posix_spawn(
        "/bin/cat",
        ["cat"],
        {"TORCH_EXTENSIONS_DIR": str(tmp_path)},
        file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)],
    )
    os.close(reading)
    try:
        assert remove_stale_locks(tmp_path) == ()
        assert lock.exists()
    finally:
        os.close(writing)
        os.waitpid(builder, 0)
    assert remove_stale_locks(tmp_path) == (lock,)
    assert not lock.exists()

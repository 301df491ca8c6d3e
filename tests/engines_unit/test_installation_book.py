"""An engine's files are compared with what they were when its profile was first used."""

from __future__ import annotations

import pytest

from capyctl.engines.fingerprint import Unfingerprintable
from capyctl.engines.installation_book import InstallationBook


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "bin" / "llama-server"
    path.parent.mkdir()
    path.write_bytes(b"one build")
    (path.parent / "libggml.so").write_bytes(b"its library")
    return path


def look(book, program, *, revision=1):
    return book.look("p", revision=revision, family="llamacpp", executable=str(program))


def test_the_first_look_records_and_finds_nothing(tmp_path, program):
    found = look(InstallationBook(tmp_path), program)

    assert found.changed is None
    assert found.installation.registered == found.installation.observed
    assert found.installation.registered.startswith("sha256:")


def test_a_change_is_found_by_a_later_daemon_and_flagged_once(tmp_path, program):
    before = look(InstallationBook(tmp_path), program).installation
    (program.parent / "libggml.so").write_bytes(b"another library")

    book = InstallationBook(tmp_path)
    once, again = look(book, program), look(book, program)

    assert "libggml.so" in once.changed
    assert once.installation.registered == before.registered
    assert once.installation.observed != before.registered
    assert (once.installation.flag, again.installation.flag) == (True, False)
    assert again.changed == once.changed


def test_a_profile_registered_anew_is_recorded_anew(tmp_path, program):
    book = InstallationBook(tmp_path)
    look(book, program)
    program.write_bytes(b"another build")

    assert look(book, program, revision=2).changed is None
    assert look(book, program, revision=2).installation.flag is False


def test_a_touched_file_with_the_same_content_is_no_change(tmp_path, program):
    book = InstallationBook(tmp_path)
    look(book, program)
    program.touch()

    assert look(book, program).changed is None


def test_a_damaged_record_is_made_anew(tmp_path, program):
    (tmp_path / "installations.json").write_text("{")

    assert look(InstallationBook(tmp_path), program).changed is None


def test_a_missing_program_is_said(tmp_path, program):
    program.unlink()

    with pytest.raises(Unfingerprintable):
        look(InstallationBook(tmp_path), program)

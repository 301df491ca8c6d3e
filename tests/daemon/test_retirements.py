"""Profiles that are being removed: durable, bounded in time, and gone with the profile."""

import stat

import attrs
import pytest

from capyctl.daemon.publishing import Publishing
from capyctl.daemon.retirements import FILE_NAME, WINDOW_MS, Retirements
from capyctl.domain.devices import Profile


@attrs.define
class Clock:
    now_ms: int = 1000

    def __call__(self):
        return self.now_ms


@pytest.fixture
def clock():
    return Clock()


def test_one_lasts_for_its_window_and_through_restarts(tmp_path, clock):
    first = Retirements(tmp_path, now_ms=clock)
    first.begin("fast")
    again = Retirements(tmp_path, now_ms=clock)

    assert "fast" in first
    assert "fast" in again
    assert "other" not in again
    clock.now_ms += WINDOW_MS - 1
    assert "fast" in again
    clock.now_ms += 1
    assert "fast" not in again
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


def test_beginning_again_prolongs_it_and_ending_ends_it(tmp_path, clock):
    made = Retirements(tmp_path, now_ms=clock)
    made.begin("fast")
    clock.now_ms += WINDOW_MS // 2
    made.begin("fast")
    made.begin("slow")
    clock.now_ms += WINDOW_MS - 1
    assert "fast" in made
    made.end("fast")
    made.end("fast")

    assert "fast" not in made
    assert "slow" in Retirements(tmp_path, now_ms=clock)
    assert "fast" not in Retirements(tmp_path, now_ms=clock)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"fast": "soon", "slow": true}', "\xff"])
def test_a_file_that_makes_no_sense_retires_nothing(tmp_path, clock, text):
    (tmp_path / FILE_NAME).write_bytes(text.encode("latin-1"))
    made = Retirements(tmp_path, now_ms=clock)

    assert "fast" not in made
    made.begin("fast")
    assert "fast" in Retirements(tmp_path, now_ms=clock)


@attrs.frozen
class Settings:
    engines_path: object
    profiles: tuple[Profile, ...]


def document(*names):
    lines = ["schema_version: 1", "kind: engines", "runtime_profiles:"]
    lines += [f"  {name}: {{engine: vllm, executable: /v}}" for name in names]
    return "\n".join(lines if names else [*lines[:2], "runtime_profiles: {}"]) + "\n"


def test_what_retires_is_published_no_more_and_forgotten_once_it_is_gone(tmp_path, clock):
    path = tmp_path / "engines.yaml"
    path.write_text(document("fast", "slow"))
    retirements = Retirements(tmp_path, now_ms=clock)
    made = Publishing(Settings(path, ()), (), retirements)
    made.reload()
    retirements.begin("fast")

    assert [p.name for p in made.profiles] == ["fast", "slow"]
    assert [p.name for p in made.offered] == ["slow"]
    assert made.find("fast") is None
    path.write_text(document("slow"))
    made.reload()
    path.write_text(document("fast", "slow"))
    made.reload()
    assert made.find("fast") is not None

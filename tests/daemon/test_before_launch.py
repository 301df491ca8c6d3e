"""Before a launch: an engine whose files changed is told of, or not launched."""

from __future__ import annotations

import pytest

from capyctl.contracts.host import LaunchRefused
from capyctl.daemon.machine import BeforeLaunch
from capyctl.domain.devices import MachineShape
from capyctl.domain.ids import DeploymentId, HostId, InstanceId, LaunchId
from capyctl.domain.launches import LaunchOrder
from capyctl.domain.specs import EngineSettings, Residency
from capyctl.engines.installation_book import InstallationBook
from capyctl.engines.surroundings import Surroundings


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "bin" / "llama-server"
    path.parent.mkdir()
    path.write_bytes(b"one build")
    return path


class Before:
    def __init__(self, folder, program):
        self.logged = []
        self.retiring = set()
        shape = MachineShape(host=HostId("h"), gpus=(), domains=())
        self.program = program
        self.check = BeforeLaunch(
            surroundings=Surroundings(
                state_dir=str(folder), shape=shape, available_bytes=lambda: None
            ),
            book=InstallationBook(folder),
            log=lambda event, **fields: self.logged.append((event, fields["profile"])),
            retirements=self.retiring,
        )

    def __call__(self, drift="warn"):
        engine = EngineSettings(
            profile="mine",
            profile_revision=1,
            family="llamacpp",
            executable=(str(self.program),),
            model_path="/models/m",
            served_name="m",
            installation_drift=drift,
        )
        order = LaunchOrder(
            launch=LaunchId("L" * 26),
            instance=InstanceId(DeploymentId("D" * 26), 0),
            engine=engine,
            residency=Residency.RESTART_ONLY,
        )
        return self.check(order)


@pytest.fixture
def before(tmp_path, program):
    found = Before(tmp_path, program)
    found()
    return found


def test_an_unchanged_engine_says_nothing(before):
    again = before("refuse")

    assert again.registered == again.observed
    assert before.logged == []


def test_a_changed_engine_is_told_of_once_and_launched(before, program):
    program.write_bytes(b"another build")

    once, again = before(), before()

    assert before.logged == [("installation_drift", "mine")]
    assert (once.flag, again.flag) == (True, False)
    assert once.observed != once.registered


def test_a_changed_engine_is_not_launched_where_that_is_refused(before, program):
    program.write_bytes(b"another build")

    with pytest.raises(LaunchRefused) as refused:
        before("refuse")

    assert (refused.value.code, refused.value.permanent) == ("installation_drift", True)
    assert "llama-server is not what it was" in refused.value.detail
    assert "register `mine` again" in refused.value.detail


@pytest.mark.parametrize("drift", ["warn", "refuse"])
def test_files_that_cannot_be_read_count_as_changed(tmp_path, program, drift):
    program.unlink()
    check = Before(tmp_path, program)

    if drift == "warn":
        assert check(drift) is None
        assert check.logged == [("installation_not_read", "mine")]
    else:
        with pytest.raises(LaunchRefused, match="installation_drift"):
            check(drift)


def test_nothing_starts_on_a_profile_that_is_being_removed(before):
    before.retiring.add("mine")

    with pytest.raises(LaunchRefused) as refused:
        before()

    assert (refused.value.code, refused.value.permanent) == ("profile_retiring", True)

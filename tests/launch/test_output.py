"""A tail is whole lines within its bound, redacted once more."""

import os

import pytest

from capyctl.launch.output import KEPT_S, Logs
from capyctl.launch.redaction import Redactor


@pytest.fixture
def logs(tmp_path):
    logs = Logs(tmp_path)
    logs.prepare("D", "L", raw=False)
    return logs


def tail(logs, bytes_max, *secrets):
    return logs.tail("D", "L", bytes_max=bytes_max, redactor=Redactor(secrets))


@pytest.mark.parametrize(
    ("bytes_max", "shown"),
    [
        (12, ("one\ntwo\nsix\n", False)),
        (11, ("two\nsix\n", True)),
        (8, ("two\nsix\n", True)),
        (3, ("", True)),
        (0, ("", True)),
    ],
)
def test_the_bound_is_exact(logs, bytes_max, shown):
    logs.path("D", "L").write_text("one\ntwo\nsix\n")
    assert tail(logs, bytes_max) == shown


def test_half_a_line_at_the_end_is_not_shown(logs):
    logs.path("D", "L").write_text("one\ntw")
    assert tail(logs, 100) == ("one\n", False)


def test_it_reaches_back_over_a_rotation(logs):
    logs.path("D", "L").write_text("three\n")
    logs.path("D", "L").with_name("L.log.1").write_text("one\ntwo\n")

    assert tail(logs, 10) == ("two\nthree\n", True)
    assert tail(logs, 100) == ("one\ntwo\nthree\n", False)


def test_an_older_file_that_is_not_shown_counts_as_left_out(logs):
    logs.path("D", "L").write_text("five\n")
    logs.path("D", "L").with_name("L.log.1").write_text("three\nfour\n")
    logs.path("D", "L").with_name("L.log.2").write_text("one\n")
    assert tail(logs, 100) == ("three\nfour\nfive\n", True)


def test_it_is_redacted_when_read(logs):
    logs.path("D", "L").write_text("api_key=abc sesame\n")
    assert tail(logs, 100, "sesame") == ("api_key=<redacted> <redacted>\n", False)


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden", "a\nb", "x" * 129])
def test_an_id_that_is_no_file_name_is_refused(logs, name):
    with pytest.raises(ValueError, match="cannot name a log"):
        logs.path("D", name)
    with pytest.raises(ValueError, match="cannot name a log"):
        logs.path(name, "L")


def test_nothing_there_is_none(logs):
    assert tail(logs, 100) is None


def written(logs, launch, *, age_s):
    """A launch's three files, last written ``age_s`` ago."""
    path = logs.prepare("D", launch, raw=True)
    now_s = os.stat(path.parent).st_mtime
    for name in (path.name, f"{path.name}.1", f"{path.name}.raw"):
        path.with_name(name).write_text("a line\n")
        os.utime(path.with_name(name), (now_s - age_s, now_s - age_s))
    return path


def test_output_is_kept_for_a_while_after_its_last_line(logs):
    old = written(logs, "OLD", age_s=KEPT_S + 60)
    young = written(logs, "YOUNG", age_s=KEPT_S - 60)
    quiet = written(logs, "QUIET", age_s=KEPT_S + 60)

    assert logs.prune({"QUIET"}) == 1

    left = {path.name for path in old.parent.iterdir()}
    assert left == {f"{p.name}{end}" for p in (young, quiet) for end in ("", ".1", ".raw")}


def test_a_deployment_that_wrote_nothing_for_long_leaves_no_folder(logs):
    folder = written(logs, "OLD", age_s=KEPT_S + 60).parent

    logs.prune(())
    assert folder.exists()  # a launch that is being prepared may be about to write there

    past_s = os.stat(folder).st_mtime - KEPT_S - 60
    os.utime(folder, (past_s, past_s))
    logs.prune(())
    assert not folder.exists()

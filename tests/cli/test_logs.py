"""`logs deployment`: what the API shows of a log, or where the file of the last launch is."""

import pytest

from tests.cli.fake_management import ID, Says, deployment, refusal, snapshot

PATH = f"/management/v1/deployments/{ID}/engine-log"


def test_the_end_of_a_log_is_shown_as_it_is(management, bench):
    management.snapshots = [snapshot(deployment("ready", name="m"))]
    management.reads = {f"{PATH}?kib=64": Says(200, {"text": "a line\nanother\n", "instance": 0})}

    ran = bench.run("logs", "deployment", "m")

    assert (ran.status, ran.out) == (0, "a line\nanother\n")
    assert bench.run("logs", "deployment", "m", "--json").value["instance"] == 0


def test_an_instance_and_a_length_are_asked_for(management, bench):
    management.reads = {f"{PATH}?kib=4&instance=1": Says(200, {"text": "b\n"})}

    ran = bench.run("logs", "deployment", ID, "--instance", "1", "--kib", "4")

    assert ran.out == "b\n"


@pytest.mark.parametrize(
    "words",
    [
        ("deployment", "m/1"),
        ("deployment", f"{ID}/1"),
        ("deployment", "m/1", "--instance", "1"),
        ("instance", "m/1"),
        ("instance", f"{ID}/1"),
    ],
    ids=" ".join,
)
def test_an_instance_is_named_as_for_start_and_stop(management, bench, words):
    management.snapshots = [snapshot(deployment("ready", name="m"))]
    management.reads = {f"{PATH}?kib=64&instance=1": Says(200, {"text": "b\n"})}

    assert bench.run("logs", *words).out == "b\n"


def test_a_name_with_a_stroke_in_it_goes_before_an_instance(management, bench):
    management.snapshots = [snapshot(deployment("ready", name="m/1"))]
    management.reads = {f"{PATH}?kib=64": Says(200, {"text": "all\n"})}

    assert bench.run("logs", "deployment", "m/1").out == "all\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("deployment", "m/1", "--instance", "0"), "--instance: 0 is not the instance of m/1"),
        (("deployment", "other"), "there is no deployment other"),
        (("deployment", "other/1"), "there is no deployment other"),
        (("deployment", "m/x"), "there is no deployment m/x"),
        (("instance", "m"), "expected <deployment>/<index>"),
        (("instance", "other/0"), "there is no deployment other"),
    ],
    ids=str,
)
def test_what_names_nothing_is_refused(management, bench, words, told):
    management.snapshots = [snapshot(deployment("ready", name="m"))]

    ran = bench.run("logs", *words)

    assert ran.status == 2
    assert told in ran.errors[0]


def test_the_file_of_an_engine_that_ended_is_named(management, bench):
    folder = bench.state_root / "logs" / ID
    folder.mkdir(parents=True)
    for name in ("01B.log", "01A.log", "01C.log.raw"):
        (folder / name).touch()
    management.reads = {f"{PATH}?kib=64": refusal("not_found", 404, message="It does not run")}

    ran = bench.run("logs", "deployment", ID)

    assert ran.status == 2
    assert ran.errors == [
        f"error [not_found]: It does not run; the log of the last launch is {folder / '01B.log'}"
    ]


def test_where_there_is_no_file_the_refusal_stands(management, bench):
    management.reads = {f"{PATH}?kib=64": refusal("not_found", 404, message="It does not run")}

    assert bench.run("logs", "deployment", ID).errors == ["error [not_found]: It does not run"]


@pytest.mark.parametrize("words", [("--kib", "0"), ("--kib", "257"), ("--instance", "-1")])
def test_bounds_are_kept(management, bench, words):
    ran = bench.run("logs", "deployment", ID, *words)

    assert ran.status == 2
    assert not management.received

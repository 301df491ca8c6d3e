"""The grammar, and what the command does with arguments it cannot use."""

import argparse
import importlib
import io
import json
import os
import subprocess
import sys

import pytest

from capyctl.cli.call import Call
from capyctl.cli.commands import roles
from capyctl.cli.commands.roles import given_flags
from capyctl.cli.failure import CommandFailed
from capyctl.cli.grammar import build_parser, leaf_parsers
from capyctl.cli.main import main
from capyctl.cli.role_flags import FLAGS
from capyctl.cli.suggesting import ELSEWHERE
from capyctl.cli.surroundings import Surroundings
from capyctl.config.named_settings import HOST_SETTINGS, SERVER_SETTINGS, STANDALONE_SETTINGS

CPU_S_MAX = 0.25


def run(*words):
    out, err = io.StringIO(), io.StringIO()
    status = main(words, Surroundings(environ={}, out=out, err=err))
    return status, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(("name", "parser"), leaf_parsers(build_parser()))
def test_every_command_has_its_function(name, parser):
    module, _, function = parser.get_default("run").partition(":")

    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize(
    ("role", "settings"),
    [("standalone", STANDALONE_SETTINGS), ("server", SERVER_SETTINGS), ("host", HOST_SETTINGS)],
)
def test_a_role_takes_every_setting_that_has_a_flag(role, settings):
    flags = {one.name for one in FLAGS[role]} - {"--debug-engine-logs"}

    assert flags == {one.flag for one in settings if one.flag is not None}


def test_flags_reach_the_role_as_they_were_given():
    words = [
        *("start", "standalone", "--listen", "127.0.0.1:1", "--no-inference-auth"),
        *("--state-dir", "/s", "--engine-args=--a 1", "--debug-engine-logs"),
    ]
    options = build_parser().parse_args(words)

    assert given_flags(Call(options=options, here=Surroundings()), "standalone") == {
        "--listen": "127.0.0.1:1",
        "--no-inference-auth": "true",
        "--state-dir": "/s",
        "--engine-args": "--a 1",
        "--debug-engine-logs": "true",
    }


@pytest.mark.parametrize(
    ("words", "simulate"),
    [((), None), (("--simulate",), ""), (("--simulate", "gpus=2"), "gpus=2")],
)
def test_simulate_may_name_its_machine(words, simulate):
    assert build_parser().parse_args(["start", "standalone", *words]).simulate == simulate


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("list", "things"),
        ("fly", "deployment", "x"),
        ("start", "deployment"),
        ("start", "deployment", "x", "--wai"),
        ("deploy", "model"),
        ("deploy", "model", "--file", "x", "--revision", "0"),
        ("deploy", "model", "--file", "x", "--revision", "-1"),
        ("status", "deployment"),
        ("list", "deployments", "--format", "yaml"),
    ],
)
def test_wrong_usage_is_a_refusal(words):
    status, out, err = run(*words)

    assert (status, out) == (2, "")
    assert err.startswith("error [usage]: ")
    assert "--help` shows what there is" in err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("stop chat", "capyctl stop deployment chat"),
        ("start chat", "capyctl start deployment chat"),
        ("status chat", "capyctl status deployment chat"),
        ("logs chat/0", "capyctl logs deployment chat/0"),
        ("drain gpu-box", "capyctl drain host gpu-box"),
        ("deploy chat.yaml", "capyctl deploy model --file chat.yaml"),
        ("start standlone", "capyctl start standalone"),
        ("list deployment", "capyctl list deployments"),
        ("list models", "capyctl list deployments"),
        ("stauts", "capyctl status"),
        ("ps", "capyctl list deployments"),
        ("run chat", "capyctl deploy model"),
        ("serve", "capyctl start standalone"),
        ("apply x", "capyctl deploy model"),
        ("rm chat", "capyctl delete deployment"),
        ("version", "capyctl --version"),
        ("help", "capyctl --help"),
    ],
)
def test_what_is_no_command_is_told_with_what_was_probably_meant(words, meant):
    status, _, err = run(*words.split())

    assert status == 2
    assert f"did you mean `{meant}`?" in err
    assert "invalid choice" not in err


@pytest.mark.parametrize("words", [("list",), ("list", "things")])
def test_what_an_action_takes_is_told_where_nothing_is_near(words):
    assert "hosts, deployments, engines" in run(*words)[2]


@pytest.mark.parametrize("words", ["doctor gpu-box", "init gpu-box", "fly x", "engine chat"])
def test_nothing_is_guessed_that_would_be_refused_as_well(words):
    assert "did you mean" not in run(*words.split())[2]


def test_every_word_of_another_program_leads_to_a_command():
    known = {name for name, _ in leaf_parsers(build_parser())}

    for meant in ELSEWHERE.values():
        assert f"capyctl {meant}" in known or meant in ("--help", "--version")


@pytest.mark.parametrize("asked", [("--json",), ("--format", "json"), ("--format=json",)])
def test_wrong_usage_is_json_where_that_is_asked_for(asked):
    status, _, err = run("list", "things", *asked)

    assert status == 2
    assert json.loads(err)["code"] == "usage"


def test_no_action_shows_the_help():
    status, _, err = run()

    assert status == 2
    assert "start a role, a deployment or one instance" in err


def test_the_version():
    status, out, _ = run("--version")

    assert status == 0
    assert out.startswith("capyctl ")


@pytest.mark.parametrize("before", [True, False])
def test_common_options_stand_before_or_after(before):
    common = ["--state-dir", "/s", "--json"]
    words = ["list", "deployments"]
    options = build_parser().parse_args([*common, *words] if before else [*words, *common])

    assert (options.state_dir, options.json) == ("/s", True)


def test_an_interrupted_command_says_so(management, bench):
    def interrupt():
        raise KeyboardInterrupt

    bench.clock.on_sleep = interrupt
    management.snapshots[0]["deployments"][0]["checkpoint_digest"]["state"] = "pending"

    ran = bench.run("start", "deployment", "my-model", "--wait")

    assert ran.status == 130
    assert ran.errors[-1].startswith("error [interrupted]: ")


def test_help_texts_are_there():
    for _, parser in leaf_parsers(build_parser()):
        for action in parser._actions:
            is_place = isinstance(action, argparse._SubParsersAction)
            assert is_place or action.help, (parser.prog, action.dest)


@pytest.mark.slow
def test_a_listing_takes_little_processor_time(management, bench):
    words = ["--state-dir", str(bench.state_root), "list", "deployments"]
    spent_s = min(spent_by([sys.executable, "-m", "capyctl.cli.main", *words]) for _ in range(3))

    assert spent_s < CPU_S_MAX


def spent_by(command):
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_output_that_nobody_reads_is_no_error(management, bench):
    command = [sys.executable, "-m", "capyctl.cli.main", "--state-dir", str(bench.state_root)]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        ran = subprocess.run(
            [*command, "list", "deployments"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            check=False,
            timeout=30,
        )

    assert (ran.returncode, ran.stderr) == (0, b"")


def test_an_unknown_option_points_at_the_help_of_its_command():
    status, _, err = run("stop", "deployment", "m", "--now")

    assert status == 2
    assert err == (
        "error [usage]: unrecognized arguments: --now; "
        "`capyctl stop deployment --help` shows what there is\n"
    )


def test_a_second_signal_to_a_role_is_told_as_such():
    with pytest.raises(CommandFailed) as caught, roles.second_signal_told():
        raise KeyboardInterrupt

    assert caught.value.exit_status == 130
    assert "engines run on" in caught.value.message

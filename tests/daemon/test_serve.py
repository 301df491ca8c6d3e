"""Starts that are refused before anything is served."""

import json
import os
import socket

import pytest

from capyctl.daemon.garbage import YOUNG_COUNT_MAX
from capyctl.daemon.serve import run_standalone
from tests.e2e.daemon import PROGRAM, free_port, running

OBJECTS_COUNT_MIN = 1000


@pytest.mark.parametrize("flag", ["--listen", "--management-listen"])
def test_a_port_that_is_taken_is_named(tmp_path, capsys, flag):
    flags = {
        "--state-dir": str(tmp_path / "state"),
        "--models-root": str(tmp_path),
        "--listen": f"127.0.0.1:{free_port()}",
        "--management-listen": "127.0.0.1:0",
    }
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status = run_standalone({**flags, flag: address}, (), "gpus=0", "json")

    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert status == 4
    assert line["event"] == "start_refused"
    assert line["fields"]["code"] == "address_in_use"
    kind = "inference" if flag == "--listen" else "management"
    message = line["fields"]["message"]
    assert message.startswith(
        f"cannot listen on {address} ({flag}, server.listeners.{kind}.bind): Address already in use"
        f", by process {os.getpid()} ("
    )
    assert message.endswith(f"). End what uses it, or choose another address with {flag}")


@pytest.mark.slow
def test_a_daemon_looks_for_garbage_seldom_and_not_at_what_a_start_has_loaded(tmp_path):
    """Each look at everything that 1,000 deployments are made of stops all streams for 0.25 s."""
    program = PROGRAM.replace("sys.exit(run", "import gc; before = gc.get_freeze_count(); (run")
    told = "gc.get_freeze_count() - before, gc.get_threshold()[0]"
    program += f"print(json.dumps([{told}]), file=sys.stderr)\n"
    with running(tmp_path, program=program) as daemon:
        daemon.stop()

        left_out, young_max = json.loads(daemon.log_path.read_text().splitlines()[-1])
    assert left_out > OBJECTS_COUNT_MIN
    assert young_max == YOUNG_COUNT_MAX

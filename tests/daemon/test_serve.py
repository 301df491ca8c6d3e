"""Starts that are refused before anything is served."""

import json
import socket

import pytest

from capyctl.daemon.serve import run_standalone
from tests.e2e.daemon import free_port


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
    assert status != 0
    assert line["event"] == "start_refused"
    assert line["fields"]["message"] == (
        f"cannot listen on {address} ({flag}): Address already in use"
    )

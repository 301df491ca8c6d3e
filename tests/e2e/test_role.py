"""A running role beside its models: whom it lets in, what it writes, and which signals end it."""

from __future__ import annotations

import http.client
import json
import signal
import stat

import pytest

from tests.e2e.daemon import Daemon, running, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """Without an inference key, and with a model that was started, asked and parked."""
    root = tmp_path_factory.mktemp("role")
    with running(root, flags={"--no-inference-auth": "true"}) as daemon:
        id = daemon.create("served", 1024)
        daemon.do(id, "start")
        daemon.wait_state(id, "ready")
        assert daemon.chat("served", max_tokens=2).status == 200
        daemon.do(id, "park")
        daemon.wait_state(id, "parked")
        yield daemon


def test_without_a_key_everybody_is_served(daemon):
    host, _, port = daemon.base_url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("GET", "/v1/models")
    status = connection.getresponse().status
    connection.close()

    recorded = (daemon.state / "run" / "inference-authentication").read_text()
    assert (status, recorded) == (200, "none\n")


def test_both_ids_of_a_request_are_in_its_answer_and_in_its_line_of_the_log(daemon):
    host, _, port = daemon.base_url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("POST", "/v1/chat/completions", b"{}", {"X-Request-Id": "mine-1"})
    answer = connection.getresponse()
    connection.close()

    def told():
        # Only whole lines; it is written after the answer.
        lines = daemon.log_path.read_text().rpartition("\n")[0].splitlines()
        ones = (json.loads(line) for line in lines)
        return [one for one in ones if one["fields"].get("client_request_id") == "mine-1"]

    (line,) = wait_until(told, what="the request's line in the log")
    assert answer.headers["X-Request-Id"] == "mine-1"
    assert line["fields"]["request_id"] == answer.headers["X-CapyCTL-Request-Id"]
    assert (line["event"], line["fields"]["status"]) == ("request", answer.status)


def test_management_asks_for_its_token_all_the_same(daemon):
    connection = http.client.HTTPConnection("127.0.0.1", daemon.management_port, timeout=30)
    connection.request("GET", "/management/v1/snapshot")
    status = connection.getresponse().status
    connection.close()

    assert status == 401


def test_everything_in_the_state_directory_is_the_owners_alone(daemon):
    open_to_others = {
        str(path.relative_to(daemon.state)): oct(path.lstat().st_mode)
        for path in (daemon.state, *daemon.state.rglob("*"))
        if stat.S_IMODE(path.lstat().st_mode) & 0o077 and not path.is_symlink()
    }

    assert open_to_others == {}


def test_each_line_of_its_log_is_a_json_object(daemon):
    lines = [json.loads(line) for line in daemon.log_path.read_text().splitlines()]

    assert {"ready", "request"} <= {line["event"] for line in lines}
    assert all(line.keys() >= {"at", "level", "role", "event"} for line in lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_order(tmp_path, number):
    daemon = Daemon(root=tmp_path)
    try:
        daemon.start()
        daemon.process.send_signal(number)
        status = daemon.process.wait(30)
        lines = [json.loads(line) for line in daemon.log_path.read_text().splitlines()]
    finally:
        daemon.end_everything()

    told = [(line["event"], line["fields"]) for line in lines]
    assert status == 0
    assert ("stopping", {"signal": number.name}) in told
    assert told[-1] == ("stopped", {"engines": "left running"})

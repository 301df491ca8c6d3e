"""What a started role says of itself, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json

import pytest

from capyctl.config.settings import load_standalone
from capyctl.daemon.banner import show_banner, warn_of_open_inference
from capyctl.telemetry.log import Log

LINES = {"inference": "127.0.0.1:8443 (API key required)", "credentials": "/s/credentials"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def log_to(stream, **more) -> Log:
    return Log(stream, role="standalone", clock_wall_ms=lambda: 0, **more)


@pytest.mark.parametrize(
    ("stream", "as_json"), [(Terminal(), None), (Terminal(), False), (io.StringIO(), False)]
)
def test_a_log_in_text_gets_lines_for_people(stream, as_json):
    show_banner("standalone", LINES, log_to(stream, as_json=as_json))

    head, *lines = stream.getvalue().splitlines()
    assert head.startswith("capyctl ")
    assert head.endswith(" standalone ready")
    assert lines == [
        "  Inference    127.0.0.1:8443 (API key required)",
        "  Credentials  /s/credentials",
    ]


@pytest.mark.parametrize(
    ("stream", "as_json"), [(io.StringIO(), None), (io.StringIO(), True), (Terminal(), True)]
)
def test_a_log_in_json_gets_one_event(stream, as_json):
    show_banner("standalone", LINES, log_to(stream, as_json=as_json))

    event = json.loads(stream.getvalue())
    assert event["event"] == "ready"
    assert event["fields"]["inference"] == LINES["inference"]
    assert event["fields"]["key_file"] == LINES["credentials"]


@pytest.mark.parametrize(
    ("address", "auth", "warned"),
    [
        ("0.0.0.0:8443", "none", True),
        ("[::]:8443", "none", True),
        ("192.168.1.2:8443", "none", True),
        ("127.0.0.1:8443", "none", False),
        ("127.1.2.3:8443", "none", False),
        ("localhost:8443", "none", False),
        ("[::1]:8443", "none", False),
        ("0.0.0.0:8443", "api_key", False),
    ],
)
def test_inference_without_a_key_beyond_this_machine_is_warned_of(tmp_path, address, auth, warned):
    env = {"CAPYCTL_INFERENCE_ADDR": address, "CAPYCTL_INFERENCE_AUTH": auth}
    settings = load_standalone(tmp_path, config_path=None, flags={}, env=env)
    stream = io.StringIO()

    warn_of_open_inference(settings, settings.inference, log_to(stream))

    assert ("inference_unauthenticated" in stream.getvalue()) is warned

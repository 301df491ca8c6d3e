"""Listeners that cannot be had: each failure has its code, and words that say what to do."""

import errno
import os
import socket
import subprocess
import sys

import pytest

from capyctl.cli.exit_codes import exit_status
from capyctl.config.role_settings import Address
from capyctl.daemon.naming import AddressRefused, Listening, holder_of, naming
from capyctl.daemon.running import run_role
from capyctl.dataplane.listener import bind

INGRESS = Listening(setting="ingress.bind")
BIND = "server.listeners.inference.bind"
INFERENCE = Listening(setting=BIND, flag="--listen")


def failing(number, *, listening=INGRESS, host="127.0.0.1"):
    with (
        pytest.raises(AddressRefused) as refused,
        naming(Address(host=host, port=1), listening),
    ):
        raise OSError(number, os.strerror(number))
    return refused.value


@pytest.mark.parametrize(
    ("number", "code", "status"),
    [
        (errno.EADDRINUSE, "address_in_use", 4),
        (errno.EADDRNOTAVAIL, "address_unavailable", 4),
        (errno.EAFNOSUPPORT, "address_unavailable", 4),
        (errno.EACCES, "address_denied", 2),
        (errno.EPERM, "address_denied", 2),
    ],
)
def test_each_failure_has_its_code_and_status(number, code, status):
    refused = failing(number)

    def serve(_):
        raise refused

    assert refused.code == code
    assert run_role("host", "json", serve) == exit_status(code) == status


@pytest.mark.parametrize("number", [errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES])
@pytest.mark.parametrize(
    ("listening", "named", "other"),
    [
        (INGRESS, "(ingress.bind)", "--set ingress.bind="),
        (INFERENCE, f"(--listen, {BIND})", "with --listen"),
    ],
)
def test_it_names_setting_address_and_remedy(number, listening, named, other):
    text = str(failing(number, listening=listening))

    assert text.startswith(f"cannot listen on 127.0.0.1:1 {named}: {os.strerror(number)}")
    assert other in text


def test_what_is_no_matter_of_the_address_stays_a_failure_of_the_system():
    with (
        pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1:1 \(ingress\.bind\)"),
        naming(Address(host="127.0.0.1", port=1), INGRESS),
    ):
        raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_listens_is_found_by_its_port(host):
    with bind(host, 0) as listening:
        port = listening.getsockname()[1]

        assert holder_of(port).startswith(f"process {os.getpid()} (")

    assert holder_of(port) is None


def test_a_port_that_another_process_has_is_said_to_be_its():
    program = (
        "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        port = int(other.stdout.readline())

        assert holder_of(port).startswith(f"process {other.pid} (")
        other.stdin.close()


def test_a_connection_is_no_listener():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))

        assert holder_of(bound.getsockname()[1]) is None

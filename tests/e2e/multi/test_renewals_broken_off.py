"""`kill -9` of either side in the middle of a renewal: whatever was written, the host is let in."""

from __future__ import annotations

import signal
import time

import pytest

from capyctl.link.identity import HostIdentity, read_identity
from tests.e2e.daemon import wait_until
from tests.e2e.multi.fleet import Fleet, Host, Server, fleet
from tests.e2e.multi.seams import Seams

pytestmark = pytest.mark.slow

DAY_S = 86_400.0
AGE_S = 130 * DAY_S
"""A third of its year and some more, so that a host asks for another one as soon as it can."""
LET_IN = "capyctl.link.enrolment:Enrolment.renew"
ISSUED = "capyctl.link.authority:Authority.issue"
STORED = "capyctl.daemon.assemble_server:Asking.__call__"
ASKED = "capyctl.link.identity:HostTls.renewal_request"
ANSWERED = "capyctl.link.identity:HostTls.renewed"
WRITTEN = "capyctl.link.identity:write_owner_file"
LOADED = "capyctl.link.contexts:HostContexts.refresh"
long = pytest.mark.faults


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("renewals")
    program = Seams(root / "server-seams").server(LET_IN, ISSUED, STORED)
    with fleet(root, server=Server(root, simulate="", program=program)) as made:
        yield made


def seams_of(host: Host) -> Seams:
    return Seams(host.root / f"{host.name}-seams")


def aged(made: Fleet, name: str) -> Host:
    """A host that has joined so long ago that its certificate is due."""
    host = made.new(name)
    host.program = seams_of(host).host(ASKED, ANSWERED, WRITTEN, LOADED)
    server = Seams(made.root / "server-seams")
    server.set_clock(-AGE_S)
    made.prepare(host)
    server.set_clock(0)
    return host


def identity_of(host: Host) -> HostIdentity:
    found = read_identity(host.state / "identity")
    assert found is not None
    return found


def is_fresh(host: Host) -> bool:
    now_ms = time.time_ns() // 1_000_000
    return not identity_of(host).shown.is_due(now_ms)


def serves_a_model(made: Fleet, host: Host) -> None:
    """Both ways: over the link it is started, over the ingress it is asked."""
    server = made.server
    id = server.create(f"on-{host.name}", weights_mib=64, host=host.name)
    server.wait_measured(id, 1)
    server.do(id, "start")
    server.wait_all_ready(id)
    assert server.chat(f"on-{host.name}").status == 200
    server.do(id, "stop")


@pytest.mark.parametrize(
    ("when", "where", "renewed"),
    [
        pytest.param("after", ASKED, True, id="it has a key, and has not asked", marks=long),
        pytest.param("before", ANSWERED, False, id="the answer has come"),
        pytest.param("before", WRITTEN, False, id="it is about to write", marks=long),
        pytest.param("after", WRITTEN, True, id="it has written"),
        pytest.param("after", LOADED, True, id="it shows the new one", marks=long),
    ],
)
def test_a_host_that_is_killed_meanwhile_is_let_in(made, when, where, renewed):
    """A key that was lost with its process costs an hour, in which the old one is good."""
    host = aged(made, f"h{len(made.hosts)}")
    old = identity_of(host).shown.fingerprint
    seams_of(host).die(when, where)
    host.start()
    assert host.wait_ended(30.0) == -signal.SIGKILL
    assert (identity_of(host).shown.fingerprint != old) is (renewed and where != ASKED)

    host.start()

    made.server.wait_host(host.name, "online")
    serves_a_model(made, host)
    if renewed:
        wait_until(lambda: is_fresh(host), what="its certificate is a fresh one")
    else:
        assert identity_of(host).shown.fingerprint == old
        (said,) = [one for one in host.log() if one["event"] == "certificate_not_renewed"]
        assert "it may have another one 3600 s after that" in said["fields"]["why"]
    host.kill()


@pytest.mark.parametrize(
    ("when", "where"),
    [
        pytest.param("before", LET_IN, id="it was asked", marks=long),
        pytest.param("after", ISSUED, id="it has issued", marks=long),
        pytest.param("after", STORED, id="it has stored"),
        pytest.param("after", LET_IN, id="it is about to answer", marks=long),
    ],
)
def test_a_server_that_is_killed_meanwhile_gives_the_same_host_its_certificate(made, when, where):
    """The process that asked asks again with the same key, in its next session."""
    host, server = aged(made, f"s{len(made.hosts)}"), made.server
    Seams(made.root / "server-seams").die(when, where)
    host.start()
    assert server.process is not None
    assert server.process.wait(30) == -signal.SIGKILL
    assert not is_fresh(host)

    server.start()

    server.wait_host(host.name, "online")
    wait_until(lambda: is_fresh(host), what="its certificate is a fresh one")
    assert host.stop() == 0
    host.start()
    server.wait_host(host.name, "online")
    serves_a_model(made, host)
    host.kill()

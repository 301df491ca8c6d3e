"""Who is let in: a host that was revoked, certificates of others, expired ones, swapped ones."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from pathlib import Path

import attrs
import pytest

from capyctl.domain.ids import HostId
from capyctl.link.certificates import key_to_pem, new_key, request_pem
from capyctl.link.contexts import host_tls_name, server_tls_name
from capyctl.link.identity import read_identity
from capyctl.link.signing import Signer
from capyctl.wire.enrolment import (
    JOIN_PATH,
    JoinFile,
    Redemption,
    read_join_file,
    write_redemption,
)
from tests.e2e.daemon import wait_until
from tests.e2e.multi.fleet import Fleet, Host, fleet

pytestmark = pytest.mark.slow

YEAR_MS = 366 * 86_400_000
HELLO = (
    b"GET /link/v1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("trust"), "a", "b") as made:
        yield made


def answer_of(
    address: tuple[str, int],
    name: str,
    authority: str,
    chain: Path | None,
    request: bytes = HELLO,
) -> bytes:
    """What a listener says to somebody with this certificate; nothing when it ends the talk."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority)
    if chain is not None:
        context.load_cert_chain(chain)
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        with (
            socket.create_connection(address, timeout=10) as raw,
            context.wrap_socket(raw, server_hostname=name) as tls,
        ):
            tls.sendall(request)
            found = tls.recv(4096)
            while request is not HELLO and (piece := tls.recv(4096)):
                found += piece
            return found
    return b""


def identity_of(host: Host):
    found = read_identity(host.state / "identity")
    assert found is not None
    return found


def forged(folder: Path, signer: Signer, host: HostId, now_ms: int) -> Path:
    """A fresh key with a certificate of ``host`` by this authority, as of that time."""
    key = new_key()
    issued = signer.for_host(request_pem(key), host, now_ms)
    path = folder / f"{host}-{now_ms}.pem"
    path.write_text(key_to_pem(key) + issued.pem)
    return path


def strangers(made: Fleet, folder: Path) -> dict[str, Path | None]:
    """Certificates that no listener may take, by what is wrong with them."""
    a = identity_of(made.hosts["a"])
    ours = Signer.from_pem((made.server.state / "identity" / "authority.pem").read_text())
    now_ms = int(time.time() * 1000)
    unknown = HostId("01J00000000000000000000000")
    return {
        "none": None,
        "foreign": forged(folder, Signer.new("01J0000000000000000000000Z"), a.host, now_ms),
        "expired": forged(folder, ours, a.host, now_ms - 2 * YEAR_MS),
        "not yet valid": forged(folder, ours, a.host, now_ms + 2 * YEAR_MS),
        "unknown host": forged(folder, ours, unknown, now_ms),
    }


def test_the_control_listener_takes_none_of_them(made, tmp_path):
    a = identity_of(made.hosts["a"])
    address = ("127.0.1.1", made.server.control)
    name, authority = server_tls_name(a.server_id), a.files.authority_pem

    said = {
        what: answer_of(address, name, authority, chain)
        for what, chain in strangers(made, tmp_path).items()
    }

    # A host that is not on record gets as far as being told so, over the link's own protocol.
    assert said.pop("unknown host").startswith(b"HTTP/1.1 101")
    assert set(said.values()) == {b""}
    assert answer_of(address, name, authority, a.files.chain).startswith(b"HTTP/1.1 101")


def redemption(file: JoinFile, **changes) -> bytes:
    """A request to join with this file, as a machine sends it."""
    asked = Redemption(
        invitation=file.invitation,
        secret=file.secret,
        host_name=file.host_name,
        recovers=False,
        request_pem=request_pem(new_key()),
    )
    body = write_redemption(attrs.evolve(asked, **changes))
    head = f"POST {JOIN_PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def invited(made: Fleet, folder: Path, name: str, *words: str) -> JoinFile:
    path = folder / f"{name}.join"
    made.on_server("invite", "host", name, "--output", str(path), *words)
    return read_join_file(path.read_bytes())


def code_of(answer: bytes) -> tuple[int, str | None]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body).get("error", {}).get("code")


def test_the_bootstrap_listener_lets_in_whoever_holds_a_good_invitation_alone(made, tmp_path):
    a = identity_of(made.hosts["a"])
    address, name = ("127.0.1.1", made.server.bootstrap), server_tls_name(a.server_id)
    file = invited(made, tmp_path, "new")
    late = invited(made, tmp_path, "late", "--expires", "1s")

    def said(request: bytes, chain: Path | None = None) -> tuple[int, str | None]:
        return code_of(answer_of(address, name, file.authority_pem, chain, request))

    # A certificate opens nothing here, whoever it is of.
    for chain in strangers(made, tmp_path).values():
        assert said(redemption(file, secret="s" * 43), chain) == (403, "invitation_unknown")
    assert said(redemption(file, host_name="other"))[0] == 403
    assert said(b"GET /management/v1/hosts HTTP/1.1\r\nhost: x\r\n\r\n")[0] == 404
    wait_until(lambda: time.time() * 1000 > late.expires_at_ms, what="the invitation has expired")
    assert said(redemption(late))[0] == 403
    # Nor did any of them use it up.
    assert said(redemption(file)) == (200, None)
    assert said(redemption(file))[0] == 403
    assert set(made.server.hosts()) == {"a", "b", "new"}


@pytest.mark.parametrize("door", ["bootstrap", "control", "ingress"])
def test_who_speaks_no_tls_is_told_nothing(made, door):
    host = made.hosts["a"]
    address = {
        "bootstrap": ("127.0.1.1", made.server.bootstrap),
        "control": ("127.0.1.1", made.server.control),
        "ingress": (host.address, host.port),
    }[door]
    found = b""

    with socket.create_connection(address, timeout=20) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while piece := raw.recv(4096):
                found += piece

    assert not found.startswith(b"HTTP")
    assert len(found) <= 7, "an alert of TLS at most"


def test_an_ingress_takes_its_server_alone(made, tmp_path):
    host = made.hosts["a"]
    a, b = identity_of(host), identity_of(made.hosts["b"])
    address, name = (host.address, host.port), host_tls_name(a.host)
    authority = a.files.authority_pem
    server = made.server.state / "identity" / "server.pem"

    said = {
        what: answer_of(address, name, authority, chain)
        for what, chain in strangers(made, tmp_path).items()
    }
    said["another host"] = answer_of(address, name, authority, b.files.chain)
    said["itself"] = answer_of(address, name, authority, a.files.chain)

    assert set(said.values()) == {b""}
    assert answer_of(address, name, authority, server).startswith(b"HTTP/1.1 404")


@pytest.mark.faults
def test_an_ingress_in_the_place_of_another_is_sent_nothing(made):
    """Two hosts have changed addresses: each shows its own certificate, and gets no request."""
    server = made.server
    id = server.create("swapped", instances=2, placement={"max_per_host": 1})
    server.wait_measured(id, 2)
    server.do(id, "start")
    server.wait_all_ready(id)
    a, b = made.hosts["a"], made.hosts["b"]
    for host in (a, b):
        assert host.stop() == 0
        server.wait_host(host.name, "offline")
    texts = [host.document.read_text() for host in (a, b)]
    for host, other in ((a, b), (b, a)):
        text = host.document.read_text()
        old = f"address: {host.address}:{host.port}"
        assert old in text
        host.document.write_text(text.replace(old, f"address: {other.address}:{other.port}"))
        host.start()
    for host in (a, b):
        server.wait_host(host.name, "online")
    server.wait_all_ready(id)

    answer = server.chat("swapped")

    assert answer.status == 503
    for host, text in zip((a, b), texts, strict=True):
        assert host.stop() == 0
        host.document.write_text(text)
        host.start()
    wait_until(lambda: server.chat("swapped").status == 200, what="an answer")
    server.do(id, "stop")


def test_a_revoked_host_ends_and_is_taken_back(made):
    server, host = made.server, made.hosts["a"]
    id = server.create("kept", host="a")
    server.wait_measured(id, 1)
    server.do(id, "start")
    server.wait_all_ready(id)
    before = host.engines()
    old = host.state / "old.pem"
    old.write_bytes(identity_of(host).files.chain.read_bytes())

    told = made.on_server("revoke", "host", "a")

    assert told["instances"] >= 1
    assert host.wait_ended() == 14
    refused = host.log()[-1]
    assert refused["event"] == "start_refused"
    assert refused["fields"]["code"] == "host_revoked"
    assert "--recover" in refused["fields"]["message"]
    assert host.engines() == before
    assert server.chat("kept").status == 503
    server.wait_state(id, "uncertain")
    identity = identity_of(host)
    name, authority = server_tls_name(identity.server_id), identity.files.authority_pem
    address = ("127.0.1.1", server.control)
    assert answer_of(address, name, authority, old) == b""
    host.start()
    assert host.wait_ended() == 14

    made.join(host, recover=True)
    host.start()

    server.wait_host("a", "online")
    server.wait_all_ready(id)
    assert host.engines() == before
    assert server.chat("kept").status == 200
    assert identity_of(host).host == identity.host
    assert answer_of(address, name, authority, old) == b""


def test_a_host_machine_says_where_commands_belong(made):
    told = made.cli(made.hosts["b"], "list", "deployments", status=2)

    assert told["code"] == "wrong_machine"
    assert f"https://127.0.1.1:{made.server.control}" in told["message"]
    assert "server machine" in told["message"]

"""Who gets through TLS, between real sockets: our own machines, and nobody else."""

from __future__ import annotations

import ssl

import pytest
import trio
import trio.testing

from capyctl.link.contexts import (
    host_ingress_context,
    host_link_context,
    host_tls_name,
    joining_context,
    refresh_context,
    server_tls_name,
)
from capyctl.link.handshake import HandshakeFailed, accept_tls
from capyctl.link.peers import (
    is_foreign,
    peer_fingerprint,
    peer_host_id,
    peer_server_id,
    revoked,
    why_refused,
)
from tests.link.trust import DAY_MS, A, B, authority, machine, meet, wall_ms


@pytest.fixture
def ours(tmp_path):
    return authority(tmp_path / "server")


async def link(host, server, name=None):
    return await meet(
        host.link, server.contexts().control, name or server_tls_name(server.server_id)
    )


async def ingress(server, host, name=None):
    return await meet(server.contexts().upstream, host.ingress, name or host_tls_name(A))


async def test_a_host_and_its_server_know_each_other(ours, tmp_path):
    host = machine(tmp_path, ours)

    met = await link(host, ours)

    assert met.read == b"hello\n"
    assert peer_host_id(met.server) == A
    assert peer_fingerprint(met.server) == host.issued.fingerprint
    assert peer_server_id(met.client) == ours.server_id
    assert met.server.version() == "TLSv1.3"
    assert (peer_server_id(met.server), peer_host_id(met.client)) == (None, None)


async def test_the_server_and_an_ingress_know_each_other(ours, tmp_path):
    host = machine(tmp_path, ours)

    met = await ingress(ours, host)

    assert met.read == b"hello\n"
    assert peer_server_id(met.server) == ours.server_id
    assert peer_host_id(met.client) == A


async def test_the_address_of_the_server_serves_as_its_name_too(ours, tmp_path):
    for name in ("server.test", "127.0.0.1"):
        assert (await link(machine(tmp_path, ours), ours, name)).spoken


def bare_client(authority_pem):
    return joining_context(authority_pem)


@pytest.mark.parametrize("side", ["control", "ingress"])
async def test_without_a_certificate_nothing_is_said(ours, tmp_path, side):
    host = machine(tmp_path, ours)
    server = ours.contexts().control if side == "control" else host.ingress
    name = server_tls_name(ours.server_id) if side == "control" else host_tls_name(A)

    met = await meet(bare_client(ours.certificate_pem), server, name)

    assert not met.spoken
    assert isinstance(met.server, HandshakeFailed)
    assert "asks for a certificate" in why_refused(met.read)


@pytest.mark.parametrize("days", [-400, 400])
async def test_a_host_out_of_its_time_hears_nothing(ours, tmp_path, days):
    host = machine(tmp_path, ours, now_ms=wall_ms() + days * DAY_MS)

    met = await link(host, ours)
    back = await ingress(ours, host)

    assert not met.spoken
    assert isinstance(met.server, HandshakeFailed)
    assert "clocks" in why_refused(met.read)
    assert isinstance(back.client, trio.BrokenResourceError)
    assert "clocks" in why_refused(back.client)


@pytest.mark.parametrize("hours", [-100, 0, 100])
async def test_clocks_may_be_hours_apart(tmp_path, hours):
    """Both certificates made by a clock that is wrong by this much."""
    ours = authority(tmp_path / "server", wall_ms() + hours * 3_600_000)
    host = machine(tmp_path, ours, now_ms=wall_ms() - hours * 3_600_000)

    assert (await link(host, ours)).spoken
    assert (await ingress(ours, host)).spoken


async def test_another_authority_is_refused_by_both_sides(ours, tmp_path):
    theirs = authority(tmp_path / "other")
    stranger = machine(tmp_path, theirs)
    knows_ours = machine(tmp_path, ours)

    to_us = await link(stranger, ours)
    to_them = await link(knows_ours, theirs)

    for met in (to_us, to_them):
        assert not met.spoken
        assert "this is not our server" in why_refused(met.client)
        assert is_foreign(met.client)


async def test_a_foreign_certificate_is_refused_by_the_server_itself(ours, tmp_path):
    """A client that skips its own look at the server gets no further."""
    stranger = machine(tmp_path, authority(tmp_path / "other"))
    careless = stranger.link
    careless.check_hostname = False
    careless.verify_mode = ssl.CERT_NONE

    met = await meet(careless, ours.contexts().control, "x")

    assert isinstance(met.server, HandshakeFailed)
    assert "it belongs to another server" in str(met.server)
    assert not met.spoken
    assert "another authority" in why_refused(met.read)
    assert is_foreign(met.read)


async def test_a_host_is_not_taken_for_its_server(ours, tmp_path):
    """Another host that listens where the server did."""
    met = await meet(
        machine(tmp_path, ours).link,
        machine(tmp_path, ours, B).ingress,
        server_tls_name(ours.server_id),
    )

    assert not met.spoken
    assert "another machine" in why_refused(met.client)


async def test_a_host_is_not_taken_for_another_host(ours, tmp_path):
    met = await ingress(ours, machine(tmp_path, ours, B), host_tls_name(A))

    assert not met.spoken
    assert "another machine" in why_refused(met.client)


async def test_an_ingress_can_tell_its_server_from_another_host(ours, tmp_path):
    met = await meet(
        machine(tmp_path, ours, B).link, machine(tmp_path, ours).ingress, host_tls_name(A)
    )

    assert peer_server_id(met.server) is None
    assert peer_host_id(met.server) == B


async def test_a_revoked_certificate_is_refused_on_link_and_ingress_from_then_on(ours, tmp_path):
    host, other = machine(tmp_path, ours), machine(tmp_path, ours, B)
    again = machine(tmp_path, ours)
    contexts = ours.contexts()
    assert (await link(host, ours)).spoken

    ours.revoke([host.issued.serial])
    ours.revoke([again.issued.serial])

    assert ours.contexts() is contexts
    for gone in (host, again):
        met = await link(gone, ours)
        assert not met.spoken
        assert isinstance(met.server, HandshakeFailed)
        assert revoked(met.read)
        assert "revoked" in why_refused(met.read)
        back = await ingress(ours, gone)
        assert not back.spoken
        assert "revoked" in why_refused(back.client)
    assert (await link(other, ours)).spoken
    assert (await ingress(ours, machine(tmp_path, ours))).spoken, "a fresh one of the same host"


async def test_no_connection_is_taken_up_again_without_a_look_at_the_certificate(ours, tmp_path):
    host = machine(tmp_path, ours)

    for met in (await link(host, ours), await ingress(ours, host)):
        assert met.spoken
        assert not met.client.session.has_ticket


async def test_an_alert_arrives_while_the_one_that_is_refused_talks_on(ours, tmp_path):
    """A close with unread bytes resets a connection, and the alert would be gone."""
    host = machine(tmp_path, ours)
    ours.revoke([host.issued.serial])
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]

    async def refuse():
        async with listener:
            with pytest.raises(HandshakeFailed):
                await accept_tls(await listener.accept(), ours.contexts().control)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        async with await trio.open_tcp_stream(*listener.socket.getsockname()) as raw:
            name = server_tls_name(ours.server_id)
            tls = trio.SSLStream(raw, host.link, server_hostname=name)
            for _ in range(20):
                await tls.send_all(b"GET / HTTP/1.1\r\n")
                await trio.testing.wait_all_tasks_blocked(0.001)
            with pytest.raises(trio.BrokenResourceError) as refused:
                await tls.receive_some(100)

    assert revoked(refused.value)


async def test_who_does_not_finish_a_handshake_is_cut_off(ours):
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with listener, await trio.open_tcp_stream(*listener.socket.getsockname()) as raw:
        with pytest.raises(HandshakeFailed, match=r"within 0\.1 s"):
            await accept_tls(await listener.accept(), ours.contexts().control, within_s=0.1)

        assert await raw.receive_some(10) == b""


async def test_older_tls_is_not_spoken(ours, tmp_path):
    old = machine(tmp_path, ours).link
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    met = await meet(old, ours.contexts().control, server_tls_name(ours.server_id))

    assert isinstance(met.client, trio.BrokenResourceError)


async def test_a_renewed_certificate_is_used_by_the_contexts_that_are_there(ours, tmp_path):
    old, new = machine(tmp_path, ours), machine(tmp_path, ours)
    link_context = host_link_context(old.files)
    ingress_context = host_ingress_context(old.files)

    old.files.chain.write_bytes(new.files.chain.read_bytes())
    refresh_context(link_context, old.files)
    refresh_context(ingress_context, old.files)

    met = await meet(link_context, ours.contexts().control, server_tls_name(ours.server_id))
    back = await meet(ours.contexts().upstream, ingress_context, host_tls_name(A))
    assert peer_fingerprint(met.server) == new.issued.fingerprint
    assert peer_fingerprint(back.client) == new.issued.fingerprint


async def test_a_machine_that_joins_trusts_the_pinned_authority_alone(ours, tmp_path):
    theirs = authority(tmp_path / "other")
    name = server_tls_name(ours.server_id)

    right = await meet(joining_context(ours.certificate_pem), ours.contexts().bootstrap, name)
    wrong = await meet(joining_context(ours.certificate_pem), theirs.contexts().bootstrap, name)

    assert right.spoken
    assert peer_server_id(right.client) == ours.server_id
    assert not wrong.spoken
    assert "this is not our server" in why_refused(wrong.client)

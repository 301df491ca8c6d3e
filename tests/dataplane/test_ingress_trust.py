"""An ingress and a server's plane with the certificates that capyctl itself makes."""

import trio

from capyctl.dataplane.tls import HostTls, ListenerTls
from capyctl.link.contexts import host_tls_name
from capyctl.link.peers import peer_host_id, peer_server_id
from tests.dataplane.engines import answers, json_answer, post
from tests.dataplane.ingresses import Machine, site
from tests.link import trust

BODY = b'{"model":"m"}'
OK = answers(json_answer(b'{"id":"1"}'))


async def test_our_own_certificates_are_met_and_told_apart(tmp_path):
    ours = trust.authority(tmp_path)
    upstream = ours.contexts().upstream
    tls = HostTls(
        context=lambda: upstream,
        name=host_tls_name,
        accepts=lambda session, host: peer_host_id(session) == host,
    )
    async with site(tls=tls) as plane:
        one, other = (trust.machine(tmp_path, ours, host) for host in (trust.A, trust.B))
        met = await plane.add_machine(OK, name=trust.A, tls=listening(one, ours.server_id))
        assert (await plane.ask(post(BODY))).status == 200

        # Another host's certificate at this host's address.
        swapped = await plane.add_machine(OK, name=trust.A, tls=listening(other, ours.server_id))
        plane.gates[0].close("switch")
        assert (await plane.ask(post(BODY))).status == 503

        # A host that calls another one.
        stream = trio.SSLStream(
            await trio.open_tcp_stream("127.0.0.1", met.port),
            other.link,
            server_hostname=host_tls_name(trust.A),
        )
        await stream.do_handshake()
        assert await stream.receive_some() == b""
        await trio.aclose_forcefully(stream)
        assert isinstance(swapped, Machine)
    assert [len(engine.requests) for engine in plane.engines] == [1, 0]


def listening(machine: trust.Machine, server: str) -> ListenerTls:
    context = machine.ingress
    return ListenerTls(
        context=lambda: context, accepts=lambda session: peer_server_id(session) == server
    )


async def test_a_host_that_is_revoked_is_not_called_again(tmp_path):
    ours = trust.authority(tmp_path)
    contexts = ours.contexts()
    tls = HostTls(
        context=lambda: contexts.upstream,
        name=host_tls_name,
        accepts=lambda session, host: peer_host_id(session) == host,
    )
    async with site(tls=tls) as plane:
        host = trust.machine(tmp_path, ours, trust.A)
        await plane.add_machine(OK, name=trust.A, tls=listening(host, ours.server_id))
        assert (await plane.ask(post(BODY))).status == 200

        ours.revoke([host.issued.serial])
        plane.plane.close_host(trust.A, cut=True)
        assert (await plane.ask(post(BODY))).status == 503
    assert len(plane.engines[0].requests) == 1

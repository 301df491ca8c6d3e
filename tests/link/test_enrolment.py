"""Renewals and revocations on the server: what is valid, for how long, and what TLS is taught."""

from __future__ import annotations

import attrs
import pytest

from capyctl.contracts.store import Change
from capyctl.domain.hosts import HostState
from capyctl.link.certificates import new_key, request_pem
from capyctl.link.contexts import HostContexts, server_tls_name
from capyctl.link.enrolment import RENEWAL_PAUSE_MS, VALID_MAX
from capyctl.link.identity import HostTls
from capyctl.link.invitations import RenewalRefused
from capyctl.link.peers import refusal, revoked
from tests.link.enrolling import joined, serving
from tests.link.trust import meet

pytestmark = pytest.mark.slow


async def link(server, context):
    name = server_tls_name(server.authority.server_id)
    return await meet(context, server.authority.contexts().control, name)


async def renewed(server, tls) -> None:
    """Over a connection that was made with the certificate it has."""
    server.clock.off_ms += RENEWAL_PAUSE_MS
    in_use = tls.identity.shown.fingerprint
    pem = await server.enrolment.renew(tls.renewal_request(), tls.identity.host, in_use)
    tls.renewed(pem)


async def test_a_host_is_let_in_before_and_after_its_renewal(tmp_path):
    async with serving(tmp_path / "server") as server:
        tls = HostTls(await joined(tmp_path / "host", await server.invite()))
        old = HostContexts.of(tls.identity.files)

        await renewed(server, tls)

        record = server.owner.hosts[tls.identity.host]
        for context in (old.link, tls.contexts.link):
            assert refusal((await link(server, context)).server, record) is None
    assert len(record.certificates) == 2


async def test_a_host_from_an_older_backup_is_let_in_until_its_certificate_is_superseded(tmp_path):
    async with serving(tmp_path / "server") as server:
        tls = HostTls(await joined(tmp_path / "host", await server.invite()))
        backup = HostContexts.of(tls.identity.files)
        times = 0
        while times < 9:
            times += 1
            await renewed(server, tls)
            record = server.owner.hosts[tls.identity.host]
            found = refusal((await link(server, backup.link)).server, record)
            if found is not None:
                break

        assert times == VALID_MAX
        assert found.code == "host_identity_superseded"
        assert "Put the newer one back" in found.message
        assert len(record.certificates) <= VALID_MAX
        assert refusal((await link(server, tls.contexts.link)).server, record) is None


async def test_the_certificate_that_a_host_asks_with_stays_valid_however_often_answers_are_lost(
    tmp_path,
):
    async with serving(tmp_path / "server") as server:
        tls = HostTls(await joined(tmp_path / "host", await server.invite()))
        in_use, host = tls.identity.shown.fingerprint, tls.identity.host

        for _ in range(10):
            server.clock.off_ms += RENEWAL_PAUSE_MS
            await server.enrolment.renew(request_pem(new_key()), host, in_use)

        record = server.owner.hosts[host]
        assert in_use in record.certificates
        assert len(record.certificates) == VALID_MAX


async def test_the_same_key_asking_again_gets_the_same_certificate(tmp_path):
    async with serving(tmp_path / "server") as server:
        tls = HostTls(await joined(tmp_path / "host", await server.invite()))
        server.clock.off_ms += RENEWAL_PAUSE_MS
        in_use, host = tls.identity.shown.fingerprint, tls.identity.host

        first = await server.enrolment.renew(tls.renewal_request(), host, in_use)
        again = await server.enrolment.renew(tls.renewal_request(), host, in_use)

        assert again == first
        assert len((await server.store.load()).certificates) == 2


async def test_a_renewal_is_refused_where_it_makes_no_sense(tmp_path):
    async with serving(tmp_path / "server") as server:
        one = await joined(tmp_path / "one", await server.invite("one"), "one")
        two = await joined(tmp_path / "two", await server.invite("two"), "two")
        renew = server.enrolment.renew
        in_use = one.shown.fingerprint

        with pytest.raises(RenewalRefused, match="3600 s after that"):
            await renew(request_pem(new_key()), one.host, in_use)
        server.clock.off_ms += RENEWAL_PAUSE_MS
        with pytest.raises(RenewalRefused, match="superseded"):
            await renew(request_pem(new_key()), one.host, two.shown.fingerprint)
        with pytest.raises(RenewalRefused, match="cannot be read"):
            await renew("garbage", one.host, in_use)
        key = new_key()
        await renew(request_pem(key), two.host, two.shown.fingerprint)
        with pytest.raises(RenewalRefused, match="fresh one"):
            await renew(request_pem(key), one.host, in_use)
        await server.revoke(one.host)
        with pytest.raises(RenewalRefused, match="not enrolled"):
            await renew(request_pem(new_key()), one.host, in_use)
        with pytest.raises(RenewalRefused, match="not enrolled"):
            await renew(request_pem(new_key()), "0" * 26, in_use)


async def test_every_certificate_a_revoked_host_ever_had_is_refused_once_that_is_stored(tmp_path):
    async with serving(tmp_path / "server") as server:
        tls = HostTls(await joined(tmp_path / "host", await server.invite()))
        first = HostContexts.of(tls.identity.files)
        await renewed(server, tls)

        await server.revoke(tls.identity.host)

        for context in (first.link, tls.contexts.link):
            assert revoked((await link(server, context)).read)

    async with serving(tmp_path / "server") as server:
        for context in (first.link, tls.contexts.link):
            assert revoked((await link(server, context)).read), "also after a restart"


async def test_a_crash_before_tls_was_taught_is_made_up_for_at_the_start(tmp_path):
    async with serving(tmp_path / "server") as server:
        host = await joined(tmp_path / "host", await server.invite())
        listed = server.authority.files.revoked.read_text()
        await server.revoke(host.host)
    server.authority.files.revoked.write_text(listed)

    async with serving(tmp_path / "server") as server:
        assert revoked((await link(server, HostContexts.of(host.files).link)).read)


async def test_a_store_put_back_from_before_a_revocation_does_not_let_the_host_in(tmp_path):
    async with serving(tmp_path / "server") as server:
        host = await joined(tmp_path / "host", await server.invite())
        before = server.owner.hosts[host.host]
        await server.revoke(host.host)
        await server.store.commit(Change(puts=(before,)))

    async with serving(tmp_path / "server") as server:
        assert server.owner.hosts[host.host].state is HostState.ENROLLED
        assert revoked((await link(server, HostContexts.of(host.files).link)).read)


async def test_a_list_that_cannot_be_written_breaks_nothing(tmp_path):
    """The record refuses the host all the same, one step after TLS."""
    async with serving(tmp_path / "server") as server:
        host = await joined(tmp_path / "host", await server.invite())
        (tmp_path / "server" / "identity" / "revoked.pem.new").mkdir()

        await server.revoke(host.host)

        met = await link(server, HostContexts.of(host.files).link)
        record = server.owner.hosts[host.host]
        assert refusal(met.server, record).code == "host_revoked"
        assert not server.store.broken
        assert "was not written" in server.log[0]


async def test_a_recovered_host_keeps_what_else_is_on_record_of_it(tmp_path):
    async with serving(tmp_path / "server") as server:
        host = await joined(tmp_path / "host", await server.invite())
        draining = attrs.evolve(server.owner.hosts[host.host], draining=True)
        await server.store.commit(Change(puts=(draining,)))
        await server.revoke(host.host)

        file = await server.invite(recover=host.host)
        await joined(tmp_path / "host", file, recovers=True)

        assert server.owner.hosts[host.host].draining

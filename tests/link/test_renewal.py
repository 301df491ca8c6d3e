"""A host's certificate is renewed over the link, and nothing of the session notices."""

from __future__ import annotations

import pytest
import trio

from capyctl.link.certificates import new_key, request_pem
from capyctl.link.identity import HostTls, read_identity, write_identity
from capyctl.link.invitations import RenewalRefused
from capyctl.link.renewal import HostRenewal, renews_none
from capyctl.wire.link import Renew
from tests.link.fakes import HOST
from tests.link.rig import open_rig
from tests.link.trust import DAY_MS, authority, wall_ms


class Desk:
    """The server's side: gives certificates, and may be told to fail."""

    def __init__(self, folder) -> None:
        self.ours = authority(folder)
        self.asked = []
        self.why = None
        self.held = None

    async def renew(self, request, host, in_use):
        self.asked.append((request, host, in_use))
        if self.held is not None:
            await self.held.wait()
        if self.why is not None:
            raise RenewalRefused(self.why)
        return self.ours.issue(request, host, wall_ms()).pem

    def enrolled(self, folder, *, days_ago: int) -> HostTls:
        key = new_key()
        issued = self.ours.issue(request_pem(key), HOST, wall_ms() - days_ago * DAY_MS)
        write_identity(
            folder,
            key=key,
            certificate_pem=issued.pem,
            host=HOST,
            name="gpu-1",
            server_id=self.ours.server_id,
            bootstrap_address="https://server.test:7444",
            control_address="https://server.test:7445",
            authority_pem=self.ours.certificate_pem,
        )
        return HostTls(read_identity(folder))


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path / "server")


async def linked(rig, desk, tls):
    rig.renewing = HostRenewal(tls=tls, wall_ms=wall_ms, log=rig.log, every_s=60)
    rig.server.renew = desk.renew
    rig.start_host()
    await rig.live()


def told(rig, event):
    return [fields for name, fields in rig.logged if name == event]


async def test_one_that_is_due_is_renewed_once_in_the_session_that_is_there(
    desk, tmp_path, autojump_clock
):
    tls = desk.enrolled(tmp_path, days_ago=200)
    before = tls.identity.shown
    async with open_rig(started=False) as rig:
        await linked(rig, desk, tls)
        await trio.sleep(200)

        assert len(told(rig, "certificate_renewed")) == 1
        assert [(host, in_use) for _, host, in_use in desk.asked] == [(HOST, before.fingerprint)]
        assert len(rig.wires) == 1, "the session went on"
    assert tls.identity.shown.key_digest != before.key_digest
    assert read_identity(tmp_path) == tls.identity


async def test_one_that_is_not_due_is_left_alone(desk, tmp_path, autojump_clock):
    async with open_rig(started=False) as rig:
        await linked(rig, desk, desk.enrolled(tmp_path, days_ago=100))
        await trio.sleep(200)

    assert desk.asked == []


async def test_a_refusal_is_logged_and_it_asks_again_later_with_the_same_key(
    desk, tmp_path, autojump_clock
):
    tls = desk.enrolled(tmp_path, days_ago=200)
    before, desk.why = tls.identity, "not now"
    async with open_rig(started=False) as rig:
        await linked(rig, desk, tls)
        await trio.sleep(90)

        assert told(rig, "certificate_not_renewed") == [{"why": "not now"}] * 2
        assert tls.identity == before
        desk.why = None
        await trio.sleep(60)
    assert tls.identity != before
    assert len(desk.asked) == 3


async def test_an_answer_that_a_cut_wire_took_is_asked_for_again(desk, tmp_path, autojump_clock):
    tls = desk.enrolled(tmp_path, days_ago=200)
    desk.held = trio.Event()
    async with open_rig(started=False) as rig:
        await linked(rig, desk, tls)
        await trio.sleep(1)
        rig.wire.cut()
        desk.held = None
        await trio.sleep(40)

        assert len(rig.wires) == 2
        assert len(told(rig, "certificate_renewed")) == 1
    keys = {desk.ours.issue(request, HOST, wall_ms()).key_digest for request, _, _ in desk.asked}
    assert keys == {tls.identity.shown.key_digest}


async def test_an_answer_that_is_none_leaves_the_session_and_the_certificate(
    desk, tmp_path, autojump_clock
):
    tls = desk.enrolled(tmp_path, days_ago=200)
    before = tls.identity

    async def nonsense(request, host, in_use):
        return "nonsense"

    async with open_rig(started=False) as rig:
        desk.renew = nonsense
        await linked(rig, desk, tls)
        await trio.sleep(60)

        assert "no certificate" in told(rig, "certificate_not_renewed")[0]["why"]
        assert len(rig.wires) == 1
    assert tls.identity == before


async def test_a_host_that_asks_while_it_is_answered_is_out_of_order(
    desk, tmp_path, autojump_clock
):
    class Hasty:
        async def run(self, post):
            for _ in range(2):
                post(Renew(request="x", in_use="0" * 64))
            await trio.sleep_forever()

        def take(self, answer):
            raise AssertionError(answer)

    desk.held = trio.Event()
    async with open_rig(started=False) as rig:
        rig.renewing, rig.server.renew = Hasty(), desk.renew
        rig.start_host()
        await rig.live()
        await trio.sleep(5)

        assert len(rig.wires) > 1
        assert "renew out of place" in str(told(rig, "host_session_ended")[0]["why"])


async def test_where_there_is_no_authority_none_is_given():
    with pytest.raises(RenewalRefused, match=HOST):
        await renews_none("", HOST, "")

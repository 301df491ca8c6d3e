"""A machine joins the server that invited it, once; everything else is refused in words."""

from __future__ import annotations

import json
import socket
import ssl
import struct

import attrs
import pytest
import trio

from capyctl.config.owner_files import write_owner_file
from capyctl.domain.hosts import HostState
from capyctl.link import invitations, joining
from capyctl.link.certificates import read_key
from capyctl.link.contexts import HostContexts, server_tls_name
from capyctl.link.identity import read_identity
from capyctl.link.invitations import JoinRefused, secret_digest
from capyctl.link.joining import open_join_file
from capyctl.link.peers import peer_host_id, refusal, revoked
from tests.link.enrolling import MINUTE_MS, changed, joined, serving
from tests.link.trust import meet

pytestmark = pytest.mark.slow


async def refused(code, machine, file, name="gpu-1", *, recovers=False):
    with pytest.raises(JoinRefused) as found:
        await joined(machine, file, name, recovers=recovers)
    assert found.value.code == code, found.value.message
    return found.value.message


def modes(folder):
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


async def test_a_machine_joins_and_is_known_on_the_link(tmp_path):
    async with serving(tmp_path / "server") as server:
        identity = await joined(tmp_path / "host", await server.invite())
        met = await meet(
            HostContexts.of(identity.files).link,
            server.authority.contexts().control,
            server_tls_name(identity.server_id),
        )

        record = server.owner.hosts[identity.host]
        stored = await server.store.load()

    assert met.spoken
    assert peer_host_id(met.server) == identity.host
    assert refusal(met.server, record) is None
    assert (record.name, record.state) == ("gpu-1", HostState.ENROLLED)
    assert record.certificates == (identity.shown.fingerprint,)
    assert identity.control_address == "https://127.0.0.1:7445"
    assert [one.host for one in stored.certificates] == [identity.host]
    assert modes(tmp_path / "host" / "identity") == {"host.pem": 0o600, "host.json": 0o600}
    assert (tmp_path / "host" / "identity").stat().st_mode & 0o777 == 0o700


async def test_the_server_keeps_the_digest_and_no_secret_anywhere(tmp_path):
    async with serving(tmp_path / "server") as server:
        file = await server.invite()
        secret = json.loads(file.read_text())["secret"]
        await joined(tmp_path / "host", file)
        (invitation,) = server.owner.invitations.values()
        key = (tmp_path / "host" / "identity" / "host.pem").read_text()

    assert len(secret) == 43
    assert invitation.secret_digest == secret_digest(secret)
    assert secret not in repr(open_join_file(file))
    file.unlink()
    for path in (path for path in (tmp_path / "server").rglob("*") if path.is_file()):
        assert secret.encode() not in path.read_bytes(), path
        assert key.splitlines()[1].encode() not in path.read_bytes(), path
    for path in (path for path in (tmp_path / "host").rglob("*") if path.is_file()):
        assert secret.encode() not in path.read_bytes(), path


async def test_an_invitation_is_good_for_one_machine(tmp_path):
    async with serving(tmp_path / "server") as server:
        file = await server.invite()
        await joined(tmp_path / "host", file)

        words = await refused("invitation_used", tmp_path / "other", file)

    assert "capyctl revoke host gpu-1" in words
    assert server.log == [f"invitation_used: {words}"]
    assert read_identity(tmp_path / "other" / "identity") is None


async def test_of_two_machines_at_once_one_gets_in(tmp_path):
    outcomes = []

    async def attempt(folder, file):
        try:
            outcomes.append((await joined(folder, file)).host)
        except JoinRefused as problem:
            outcomes.append(problem.code)

    async with serving(tmp_path / "server") as server:
        file = await server.invite()
        async with trio.open_nursery() as nursery:
            for name in "abcd":
                nursery.start_soon(attempt, tmp_path / name, file)

        assert sorted(outcomes, key=str)[1:] == ["invitation_used"] * 3
        assert list(server.owner.hosts) == [min(outcomes, key=str)]


async def test_an_invitation_expires_by_the_servers_clock(tmp_path):
    async with serving(tmp_path / "server") as server:
        file = await server.invite(minutes=15)
        server.clock.off_ms = 15 * MINUTE_MS

        words = await refused("invitation_expired", tmp_path / "host", file)

        server.clock.off_ms = 14 * MINUTE_MS
        assert (await joined(tmp_path / "host", file)).name == "gpu-1"
    assert "`capyctl invite host gpu-1 --output F`" in words


async def test_a_host_whose_clock_is_hours_off_joins(tmp_path):
    """The join file's time is for people; TLS goes by dates that are days away."""
    async with serving(tmp_path / "server") as server:
        server.clock.off_ms = -40 * 60 * MINUTE_MS

        identity = await joined(tmp_path / "host", await server.invite())
        met = await meet(
            HostContexts.of(identity.files).link,
            server.authority.contexts().control,
            server_tls_name(identity.server_id),
        )

    assert met.spoken


async def test_the_name_is_the_one_that_was_invited(tmp_path):
    async with serving(tmp_path / "server") as server:
        file = await server.invite("gpu-1")

        here = await refused("host_name_mismatch", tmp_path / "host", file, "gpu-2")
        assert server.heard == [], "nothing was sent"
        there = await refused(
            "host_name_mismatch", tmp_path / "host", changed(file, host_name="gpu-2"), "gpu-2"
        )

    assert "gpu-1" in here
    assert "gpu-2" in here
    assert "invite gpu-2" in there


async def test_another_secret_or_invitation_is_unknown(tmp_path):
    async with serving(tmp_path / "server") as server:
        file = await server.invite()
        other = json.loads((await server.invite("gpu-2")).read_text())

        wrong = await refused("invitation_unknown", tmp_path / "a", changed(file, secret="x" * 43))
        swapped = changed(file, invitation_id=other["invitation_id"])
        await refused("invitation_unknown", tmp_path / "b", swapped)
        gone = changed(file, invitation_id="0" * 26)
        assert await refused("invitation_unknown", tmp_path / "c", gone) == wrong


async def test_the_secret_is_compared_in_constant_time(tmp_path, monkeypatch):
    compared = []

    def compare(left, right):
        compared.append((left, right))
        return left == right

    monkeypatch.setattr(invitations.hmac, "compare_digest", compare)
    async with serving(tmp_path / "server") as server:
        file = await server.invite()
        await joined(tmp_path / "host", file)
        await refused("invitation_unknown", tmp_path / "b", changed(file, invitation_id="0" * 26))

    digest = secret_digest(json.loads(file.read_text())["secret"])
    assert (digest, digest) in compared
    assert (digest, "0" * 64) in compared, "also for an invitation that is not there"


async def test_nothing_secret_is_sent_to_another_server(tmp_path):
    async with serving(tmp_path / "server") as ours, serving(tmp_path / "other") as theirs:
        file = await ours.invite()
        address = json.loads((await theirs.invite()).read_text())["bootstrap_address"]

        words = await refused(
            "server_not_trusted", tmp_path / "host", changed(file, bootstrap_address=address)
        )

        assert "Nothing was sent to it" in words
        assert "another authority" in words
        assert theirs.heard == []
        assert theirs.log == [
            "the other side trusts another authority: it belongs to another server"
        ]


async def test_a_host_of_ours_in_the_servers_place_gets_no_secret(tmp_path):
    async with serving(tmp_path / "server") as server:
        host = await joined(tmp_path / "host", await server.invite())
        file = await server.invite("gpu-2")
        told, heard = trio.open_memory_channel(1)

        async def pretend(raw):
            tls = trio.SSLStream(raw, context, server_side=True)
            try:
                await told.send(await tls.receive_some(1000))
            except trio.BrokenResourceError:
                await told.send(None)

        context = HostContexts.of(host.files).ingress
        context.verify_mode = ssl.CERT_NONE
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, pretend, 0)
            port = listeners[0].socket.getsockname()[1]
            wrong = changed(file, bootstrap_address=f"https://127.0.0.1:{port}")
            words = await refused("server_not_trusted", tmp_path / "new", wrong, "gpu-2")
            got = await heard.receive()
            nursery.cancel_scope.cancel()

    assert "another machine" in words
    assert got is None


@pytest.mark.parametrize("reset", [False, True])
async def test_a_server_that_takes_no_more_now_is_asked_again(tmp_path, reset):
    """It closes what is too much before a word of TLS, which says nothing of who it is."""

    async def close(raw: trio.SocketStream) -> None:
        if reset:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(raw)

    async with serving(tmp_path / "server") as server, trio.open_nursery() as nursery:
        file = await server.invite()
        listeners = await nursery.start(trio.serve_tcp, close, 0)
        port = listeners[0].socket.getsockname()[1]
        full = changed(file, bootstrap_address=f"https://127.0.0.1:{port}")
        words = await refused("server_unreachable", tmp_path / "host", full)
        nursery.cancel_scope.cancel()

    assert "run the same command again" in words


async def test_a_server_that_is_not_there_is_named(tmp_path):
    async with serving(tmp_path / "server") as server:
        file = await server.invite()

    words = await refused("server_unreachable", tmp_path / "host", file)

    assert json.loads(file.read_text())["bootstrap_address"] in words


@pytest.mark.parametrize("field", ["bootstrap_address", "control_address"])
@pytest.mark.parametrize(
    "where",
    ["x", "x:", "x:7445x", "x:0", "x:65536", "[x:1", "a:b:1", "a..b:1", ".:1", f"{'a' * 64}.b:1"],
)
async def test_an_address_that_nobody_can_dial_is_seen_before_anything_is_used(
    tmp_path, field, where
):
    async with serving(tmp_path / "server") as server:
        file = changed(await server.invite(), **{field: f"https://{where}"})

    words = await refused("join_file_unusable", tmp_path / "host", file)

    assert field in words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not one JSON value"),
        ("{}", "authority"),
        ("garbage", "not one JSON value"),
        ("\x00" * 100, "not one JSON value"),
        ("[" * 5000, "Copy it again"),
        ('{"secret": "hush-hush"}', "secret"),
        ("x" * 20_000, "over 16384 bytes"),
    ],
)
def test_a_file_that_is_no_join_file_is_refused_without_showing_it(tmp_path, text, words):
    path = tmp_path / "join.json"
    path.write_text(text)
    path.chmod(0o600)

    with pytest.raises(JoinRefused, match=words) as found:
        open_join_file(path)

    assert found.value.code == "join_file_unusable"
    assert "hush" not in str(found.value)


def test_a_join_file_is_the_owners_alone(tmp_path):
    path = tmp_path / "join.json"
    path.write_text("{}")
    path.chmod(0o644)

    with pytest.raises(JoinRefused, match="0600"):
        open_join_file(path)
    with pytest.raises(JoinRefused, match="no join file"):
        open_join_file(tmp_path / "missing")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_server_that_dies_meanwhile_is_asked_again(tmp_path, when):
    """After its commit it has let the machine in, and the machine does not know it yet."""
    async with serving(tmp_path / "server") as server:
        file = await server.invite()
        server.owner.killed = when
        await refused("server_unreachable", tmp_path / "host", file)
        port = int(json.loads(file.read_text())["bootstrap_address"].rpartition(":")[2])
    assert read_identity(tmp_path / "host" / "identity") is None

    async with serving(tmp_path / "server", port=port) as server:
        known = list(server.owner.hosts)
        assert len(known) == (1 if when == "after" else 0)
        if when == "after":
            await refused("invitation_used", tmp_path / "other", file)

        identity = await joined(tmp_path / "host", file)

        assert list(server.owner.hosts) == (known or [identity.host])
        record = server.owner.hosts[identity.host]
    assert record.certificates == (identity.shown.fingerprint,)


async def broken_off(root, file, monkeypatch):
    """A join of a machine that dies with the answer in its hand."""

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(joining, "write_identity", die)
        with pytest.raises(KeyboardInterrupt):
            await joined(root, file)


async def test_a_machine_that_dies_after_the_answer_gets_the_same_certificate(
    tmp_path, monkeypatch
):
    async with serving(tmp_path / "server") as server:
        file = await server.invite()
        await broken_off(tmp_path / "host", file, monkeypatch)
        assert modes(tmp_path / "host" / "identity") == {"joining.json": 0o600}
        (record,) = server.owner.hosts.values()

        identity = await joined(tmp_path / "host", file)

        assert identity.host == record.id
        assert record.certificates == (identity.shown.fingerprint,)
        server.clock.off_ms = 15 * MINUTE_MS


async def test_one_that_broke_off_too_long_ago_is_told_how_to_come_back(tmp_path, monkeypatch):
    """Its name is taken by itself, so that another ordinary invitation would be refused."""
    async with serving(tmp_path / "server") as server:
        file = await server.invite()
        await broken_off(tmp_path / "host", file, monkeypatch)
        (host,) = server.owner.hosts
        server.clock.off_ms = 15 * MINUTE_MS

        words = await refused("invitation_expired", tmp_path / "host", file)

        assert "`capyctl revoke host gpu-1`" in words
        assert "`capyctl invite host gpu-1 --recover --output F`" in words
        assert "`capyctl join host --recover --join-file F`" in words
        await server.revoke(host)
        recovery = await server.invite(recover=host)
        identity = await joined(tmp_path / "host", recovery, recovers=True)
    assert identity.host == host


async def test_a_recovery_that_broke_off_between_its_files_is_finished(tmp_path, monkeypatch):
    """The key is the new one, and the addresses are still those of the former server's place."""
    async with serving(tmp_path / "server") as server:
        old = await joined(tmp_path / "host", await server.invite())
        await server.revoke(old.host)
        file = changed(
            await server.invite(recover=old.host), control_address="https://moved.test:7445"
        )
        written = []

        def die_at_the_second(path, text):
            if written:
                raise KeyboardInterrupt
            written.append(path.name)
            write_owner_file(path, text)

        with monkeypatch.context() as dying:
            dying.setattr("capyctl.link.identity.write_owner_file", die_at_the_second)
            with pytest.raises(KeyboardInterrupt):
                await joined(tmp_path / "host", file, recovers=True)
        between = read_identity(tmp_path / "host" / "identity")

        new = await joined(tmp_path / "host", file, recovers=True)

    assert written == ["host.pem"]
    assert between.shown == new.shown, "a start in between is the recovered host"
    assert between.control_address == old.control_address
    assert new.control_address == "https://moved.test:7445"
    assert modes(tmp_path / "host" / "identity").keys() == {"host.pem", "host.json"}


async def test_the_same_key_is_not_answered_for_ever(tmp_path, monkeypatch):
    async with serving(tmp_path / "server") as server:
        file = await server.invite()
        identity_dir = tmp_path / "host" / "identity"
        await joined(tmp_path / "host", file)
        key = read_key((identity_dir / "host.pem").read_text())
        monkeypatch.setattr(joining, "new_key", lambda: key)

        assert (await joined(tmp_path / "b", file)).host in server.owner.hosts
        server.clock.off_ms = 15 * MINUTE_MS
        await refused("invitation_expired", tmp_path / "c", file)
        server.clock.off_ms = 0
        await server.revoke(read_identity(identity_dir).host)
        await refused("host_revoked", tmp_path / "d", file)


async def test_a_state_directory_that_was_copied_does_not_join_as_another(tmp_path, monkeypatch):
    async with serving(tmp_path / "server") as server:
        await joined(tmp_path / "host", await server.invite())
        key = read_key((tmp_path / "host" / "identity" / "host.pem").read_text())
        monkeypatch.setattr(joining, "new_key", lambda: key)

        words = await refused(
            "key_not_fresh", tmp_path / "copy", await server.invite("gpu-2"), "gpu-2"
        )

    assert "identity" in words


async def test_an_answer_for_another_host_or_key_is_not_taken(tmp_path):
    async with serving(tmp_path / "server") as server:
        other = await joined(tmp_path / "other", await server.invite("b"), "b")
        pem = other.files.chain.read_text().partition("-----BEGIN C")
        changes = (
            {"host": other.host},
            {"certificate_pem": "".join(pem[1:])},
            {"host": other.host, "certificate_pem": "".join(pem[1:])},
            {"certificate_pem": "nonsense"},
        )

        for change in changes:
            server.tamper = lambda answer, change=change: attrs.evolve(answer, **change)
            await refused("server_failed", tmp_path / "host", await server.invite())
            server.owner.hosts = {other.host: server.owner.hosts[other.host]}

    assert read_identity(tmp_path / "host" / "identity") is None


async def test_a_machine_joins_once(tmp_path):
    async with serving(tmp_path / "server") as server, serving(tmp_path / "other") as theirs:
        first = await joined(tmp_path / "host", await server.invite())

        again = await refused("joined_already", tmp_path / "host", await server.invite("b"), "b")
        await refused("joined_already", tmp_path / "host", await theirs.invite())

        assert read_identity(tmp_path / "host" / "identity") == first
    assert "capyctl start host" in again
    assert "capyctl invite host gpu-1 --recover" in again
    assert "capyctl join host --recover" in again


async def test_a_revoked_host_comes_back_under_its_id_with_another_key(tmp_path):
    async with serving(tmp_path / "server") as server:
        old = await joined(tmp_path / "host", await server.invite())
        await server.revoke(old.host)
        old_link = HostContexts.of(old.files).link
        control, name = server.authority.contexts().control, server_tls_name(old.server_id)
        refused_now = await meet(old_link, control, name)

        file = await server.invite(recover=old.host)
        new = await joined(tmp_path / "host", file, recovers=True)
        record = server.owner.hosts[new.host]
        back = await meet(HostContexts.of(new.files).link, control, name)
        still = await meet(old_link, control, name)

    assert revoked(refused_now.read)
    assert new.host == old.host
    assert new.shown.key_digest != old.shown.key_digest
    assert (record.state, record.certificates) == (HostState.ENROLLED, (new.shown.fingerprint,))
    assert refusal(back.server, record) is None
    assert revoked(still.read), "the old certificate is refused for ever"


async def test_ordinary_and_recovery_files_are_not_exchanged(tmp_path):
    async with serving(tmp_path / "server") as server:
        host = await joined(tmp_path / "host", await server.invite())
        await server.revoke(host.host)
        recovery = await server.invite(recover=host.host)
        ordinary = await server.invite("gpu-2")

        words = await refused("recovery_expected", tmp_path / "new", recovery)
        assert "--recover" in words
        words = await refused(
            "recovery_not_expected", tmp_path / "host", ordinary, "gpu-2", recovers=True
        )
        assert "without --recover" in words
        assert len(server.heard) == 1, "found here, before anything was sent"
        lying = changed(recovery, purpose="join", host_id=None)
        await refused("recovery_expected", tmp_path / "new", lying)
        lying = changed(ordinary, purpose="recover", host_id=host.host)
        await refused("recovery_not_expected", tmp_path / "host", lying, "gpu-2", recovers=True)


async def test_only_a_revoked_host_is_recovered(tmp_path):
    async with serving(tmp_path / "server") as server:
        host = await joined(tmp_path / "host", await server.invite())
        file = await server.invite(recover=host.host)

        words = await refused("host_not_revoked", tmp_path / "host", file, recovers=True)

        assert read_identity(tmp_path / "host" / "identity") == host
    assert "not revoked" in words


async def test_a_recovery_is_for_the_machine_it_names(tmp_path):
    async with serving(tmp_path / "server") as server:
        one = await joined(tmp_path / "one", await server.invite("one"), "one")
        two = await joined(tmp_path / "two", await server.invite("two"), "two")
        await server.revoke(one.host)
        file = changed(await server.invite("one", recover=one.host))

        words = await refused("other_server", tmp_path / "two", file, "one", recovers=True)

        assert two.host in words
        fresh = await joined(tmp_path / "new disk", file, "one", recovers=True)
    assert fresh.host == one.host, "a machine that lost its state can come back too"


async def test_a_damaged_identity_is_recovered_and_not_joined_over(tmp_path):
    async with serving(tmp_path / "server") as server:
        host = await joined(tmp_path / "host", await server.invite())
        (tmp_path / "host" / "identity" / "host.pem").write_text("garbage")

        words = await refused("joined_already", tmp_path / "host", await server.invite("b"), "b")
        await server.revoke(host.host)
        file = await server.invite(recover=host.host)
        back = await joined(tmp_path / "host", file, recovers=True)

    assert "Restore it from a backup" in words
    assert back.host == host.host


async def test_a_name_that_was_given_away_meanwhile_is_refused(tmp_path):
    async with serving(tmp_path / "server") as server:
        first, second = await server.invite(), await server.invite()
        await joined(tmp_path / "one", first)

        await refused("host_name_taken", tmp_path / "two", second)

        assert len(server.owner.hosts) == 1

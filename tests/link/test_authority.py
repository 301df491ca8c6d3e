"""The authority is made once and owner-only, and its certificate is renewed without a gap."""

from __future__ import annotations

import re
import time

import pytest

from capyctl.link.authority import AuthorityUnusable
from capyctl.link.certificates import BadCertificate, new_key, read_shown, request_pem
from capyctl.link.contexts import server_tls_name
from capyctl.link.peers import peer_fingerprint
from tests.link.trust import DAY_MS, NAMES, A, authority, machine, meet, wall_ms


def chain(ours) -> str:
    return ours.files.chain.read_text()


def test_it_is_made_once_and_is_the_owners_alone(tmp_path):
    first = authority(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "identity").iterdir()}

    second = authority(tmp_path)

    assert {path.name: path.stat().st_mode & 0o777 for path in before} == {
        "authority.pem": 0o600,
        "server.pem": 0o600,
        "revoked.pem": 0o600,
    }
    assert (tmp_path / "identity").stat().st_mode & 0o777 == 0o700
    assert {path: path.read_bytes() for path in before} == before
    assert (second.server_id, second.certificate_pem) == (first.server_id, first.certificate_pem)
    assert "PRIVATE" not in first.certificate_pem
    assert read_shown(chain(first)).names == set(NAMES)


def test_one_that_hosts_trust_is_not_made_anew(tmp_path):
    with pytest.raises(AuthorityUnusable, match="restore the backup"):
        authority(tmp_path, hosts_are_known=True)

    assert not (tmp_path / "identity").exists()


def cut(path):
    path.write_bytes(path.read_bytes()[:-80])


def swap(path):
    """Another authority's certificate under this one's key."""
    other = authority(path.parent.parent / "other").certificate_pem
    key = re.match(r"(?s).*END PRIVATE KEY-----\n", path.read_text())
    path.write_text(key[0] + other)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("authority.pem", cut),
        ("authority.pem", swap),
        ("authority.pem", lambda path: path.write_bytes(b"\xff\x00")),
        ("authority.pem", lambda path: path.chmod(0o644)),
        ("revoked.pem", cut),
    ],
)
def test_what_was_damaged_or_is_open_to_others_is_not_used(tmp_path, name, damage):
    authority(tmp_path)
    damage(tmp_path / "identity" / name)

    with pytest.raises(AuthorityUnusable, match="restore the backup"):
        authority(tmp_path)


def test_a_lost_server_certificate_and_list_are_made_again(tmp_path):
    first = authority(tmp_path)
    first.files.chain.write_text("garbage")
    first.files.revoked.unlink()

    second = authority(tmp_path)

    assert read_shown(chain(second)).server_id == first.server_id
    assert second.contexts().control


@pytest.mark.parametrize(("days", "renewed"), [(0, False), (121, False), (122, True), (400, True)])
def test_its_certificate_is_renewed_after_a_third_of_its_year(tmp_path, days, renewed):
    ours = authority(tmp_path)
    before = chain(ours)

    assert ours.keep_current(NAMES, wall_ms() + days * DAY_MS) is renewed
    assert (chain(ours) != before) is renewed


def test_a_clock_that_was_far_ahead_does_not_leave_it_invalid(tmp_path):
    ours = authority(tmp_path, wall_ms() + 4000 * DAY_MS)

    assert ours.keep_current(NAMES, wall_ms())


def test_other_names_make_another_certificate(tmp_path):
    ours = authority(tmp_path)

    assert not ours.keep_current(["SERVER.test", "127.0.0.1"], wall_ms())
    assert ours.keep_current(["server.test", "10.1.2.3", "fd00::1"], wall_ms())
    assert not ours.keep_current(["server.test", "10.1.2.3", "fd00:0:0::1"], wall_ms())
    with pytest.raises(BadCertificate, match="no name or address"):
        ours.keep_current(["sërver"], wall_ms())


async def test_connections_go_on_while_it_is_renewed(tmp_path):
    ours = authority(tmp_path / "server", wall_ms() - 200 * DAY_MS)
    host, control = machine(tmp_path, ours).link, ours.contexts().control
    name = server_tls_name(ours.server_id)
    before = await meet(host, control, name)

    assert ours.keep_current(NAMES, wall_ms())

    after = await meet(host, control, name)
    assert after.spoken
    assert peer_fingerprint(after.client) != peer_fingerprint(before.client)
    assert peer_fingerprint(after.client) == read_shown(chain(ours)).fingerprint


async def test_what_was_revoked_stays_so_after_a_restart(tmp_path):
    ours = authority(tmp_path / "server")
    hosts = [machine(tmp_path, ours) for _ in range(3)]
    for host in hosts:
        ours.revoke([host.issued.serial])
        ours.revoke([host.issued.serial])

    again = authority(tmp_path / "server")

    assert again.revoked == {host.issued.serial for host in hosts}
    for host in hosts:
        met = await meet(host.link, again.contexts().control, server_tls_name(ours.server_id))
        assert not met.spoken


def test_a_list_that_cannot_be_written_is_written_the_next_time(tmp_path):
    ours = authority(tmp_path)
    blocked = tmp_path / "identity" / "revoked.pem.new"
    blocked.mkdir()
    with pytest.raises(OSError, match=r"revoked\.pem\.new"):
        ours.revoke(["0a" * 20])
    blocked.rmdir()

    ours.revoke(["0b" * 20])

    assert authority(tmp_path).revoked == {"0a" * 20, "0b" * 20}


def test_a_request_decides_nothing_but_the_key(tmp_path):
    ours = authority(tmp_path)
    key = new_key()

    issued = ours.issue(request_pem(key), A, wall_ms())

    shown = read_shown(issued.pem)
    assert (shown.host, shown.server_id, shown.names) == (A, None, frozenset())
    assert (shown.fingerprint, shown.key_digest) == (issued.fingerprint, issued.key_digest)
    assert shown.expires_at_ms == issued.expires_at_ms


@pytest.mark.parametrize("text", ["", "garbage", "x" * 5000, "-----BEGIN CERTIFICATE REQUEST-----"])
def test_what_is_no_request_is_refused(tmp_path, text):
    with pytest.raises(BadCertificate):
        authority(tmp_path).issue(text, A, wall_ms())


def test_a_request_that_another_key_signed_is_refused(tmp_path):
    good = request_pem(new_key())
    lines = good.splitlines()
    lines[-2] = lines[-2][:-8] + ("A" * 7) + lines[-2][-1]

    with pytest.raises(BadCertificate):
        authority(tmp_path).issue("\n".join(lines) + "\n", A, wall_ms())


def test_issuing_is_cheap(tmp_path):
    """A hundred hosts that join or renew at once do not hold up the server."""
    ours = authority(tmp_path)
    request = request_pem(new_key())
    begun_s = time.process_time()

    for _ in range(10):
        ours.issue(request, A, wall_ms())

    assert time.process_time() - begun_s < 1

"""A host's identity on disk, and how its certificate is renewed while it is in use."""

from __future__ import annotations

import attrs
import pytest

from capyctl.link.certificates import BadCertificate, new_key, request_pem
from capyctl.link.contexts import server_tls_name
from capyctl.link.identity import HostTls, IdentityUnusable, read_identity, write_identity
from capyctl.link.peers import peer_fingerprint
from tests.link.trust import DAY_MS, A, B, authority, meet, wall_ms


def enrolled(folder, ours, host=A, *, now_ms=None):
    key = new_key()
    issued = ours.issue(request_pem(key), host, wall_ms() if now_ms is None else now_ms)
    write_identity(
        folder,
        key=key,
        certificate_pem=issued.pem,
        host=host,
        name="gpu-1",
        server_id=ours.server_id,
        bootstrap_address="https://server.test:7444",
        control_address="https://server.test:7445",
        authority_pem=ours.certificate_pem,
    )
    return read_identity(folder)


@pytest.fixture
def ours(tmp_path):
    return authority(tmp_path / "server")


def answer(ours, tls, host=A):
    return ours.issue(tls.renewal_request(), host, wall_ms()).pem


def test_a_machine_that_joined_nothing_has_none(tmp_path):
    assert read_identity(tmp_path) is None


def test_it_is_read_as_it_was_written(ours, tmp_path):
    found = enrolled(tmp_path, ours)

    assert (found.host, found.name, found.server_id) == (A, "gpu-1", ours.server_id)
    assert found.control_address == "https://server.test:7445"
    assert found.shown.host == A
    assert "PRIVATE" not in repr(found)
    assert "BEGIN" not in repr(found)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("host.pem", lambda path: path.unlink()),
        ("host.pem", lambda path: path.write_text("garbage")),
        ("host.pem", lambda path: path.write_text(path.read_text().partition("-----BEGIN C")[0])),
        ("host.pem", lambda path: path.chmod(0o640)),
        ("host.json", lambda path: path.write_text("{}")),
        ("host.json", lambda path: path.write_text("[" * 9999)),
        ("host.json", lambda path: path.write_text(path.read_text().replace(A, B))),
        ("host.json", lambda path: path.write_text(path.read_text().replace(":7445", ":x"))),
        ("host.json", lambda path: path.write_text(path.read_text().replace("r.test:7444", "..a"))),
        ("host.json", lambda path: path.chmod(0o604)),
    ],
)
def test_a_damaged_one_is_refused_in_words(ours, tmp_path, name, change):
    enrolled(tmp_path, ours)
    change(tmp_path / name)

    with pytest.raises(IdentityUnusable, match="join again with --recover") as refused:
        read_identity(tmp_path)

    assert "PRIVATE" not in str(refused.value)


def test_another_authoritys_certificate_is_no_identity(ours, tmp_path):
    enrolled(tmp_path, authority(tmp_path / "other"))
    mine = (tmp_path / "host.json").read_text()
    enrolled(tmp_path, ours)
    (tmp_path / "host.json").write_text(mine)

    with pytest.raises(IdentityUnusable, match="another authority"):
        read_identity(tmp_path)


@pytest.mark.parametrize(
    ("days", "words"),
    [(0, None), (364, None), (366, "expired"), (-6, None), (-8, "not valid yet")],
)
def test_it_says_by_this_machines_clock_whether_it_is_good(ours, tmp_path, days, words):
    found = enrolled(tmp_path, ours)

    why = found.why_not_current(wall_ms() + days * DAY_MS)

    assert (why is None) is (words is None)
    if why is not None:
        assert words in why
        assert "invite host gpu-1 --recover" in why


@pytest.mark.parametrize(("days", "due"), [(0, False), (121, False), (122, True), (-8, True)])
def test_it_is_renewed_after_a_third_of_its_year(ours, tmp_path, days, due):
    tls = HostTls(enrolled(tmp_path, ours))

    assert tls.renewal_is_due(wall_ms() + days * DAY_MS) is due


async def test_a_renewed_certificate_is_shown_from_the_next_connection_on(ours, tmp_path):
    tls = HostTls(enrolled(tmp_path, ours))
    contexts, before = tls.contexts, tls.identity.shown
    control, name = ours.contexts().control, server_tls_name(ours.server_id)
    first = await meet(contexts.link, control, name)

    tls.renewed(answer(ours, tls))

    second = await meet(contexts.link, control, name)
    assert tls.contexts is contexts
    assert peer_fingerprint(first.server) == before.fingerprint
    assert peer_fingerprint(second.server) == tls.identity.shown.fingerprint
    assert tls.identity.shown.key_digest != before.key_digest
    assert read_identity(tmp_path) == tls.identity
    assert (tmp_path / "host.pem").stat().st_mode & 0o777 == 0o600


def test_a_lost_answer_is_asked_for_with_the_same_key(ours, tmp_path):
    tls = HostTls(enrolled(tmp_path, ours))
    digests = [ours.issue(tls.renewal_request(), A, wall_ms()).key_digest for _ in range(2)]

    tls.renewed(answer(ours, tls))

    assert digests[0] == digests[1] == tls.identity.shown.key_digest
    assert ours.issue(tls.renewal_request(), A, wall_ms()).key_digest != digests[0]


def test_an_answer_that_is_not_ours_changes_nothing(ours, tmp_path):
    tls = HostTls(enrolled(tmp_path, ours))
    before = (tmp_path / "host.pem").read_bytes()
    with pytest.raises(BadCertificate, match="no certificate was asked for"):
        tls.renewed(tls.identity.files.authority_pem)
    request = tls.renewal_request()
    others = [
        "garbage",
        ours.issue(request_pem(new_key()), A, wall_ms()).pem,
        ours.issue(request, B, wall_ms()).pem,
        authority(tmp_path / "other").issue(request, A, wall_ms()).pem,
    ]

    for pem in others:
        with pytest.raises(BadCertificate):
            tls.renewed(pem)

    assert (tmp_path / "host.pem").read_bytes() == before
    assert read_identity(tmp_path) == tls.identity


def test_a_full_disk_leaves_the_old_one(ours, tmp_path):
    tls = HostTls(enrolled(tmp_path, ours))
    pem = answer(ours, tls)
    (tmp_path / "host.pem.new").mkdir()

    with pytest.raises(OSError, match=r"host\.pem"):
        tls.renewed(pem)
    assert read_identity(tmp_path) == tls.identity

    (tmp_path / "host.pem.new").rmdir()
    tls.renewed(pem)
    assert read_identity(tmp_path) == tls.identity


def test_files_that_were_damaged_since_are_refused(ours, tmp_path):
    identity = enrolled(tmp_path, ours)
    (tmp_path / "host.pem").write_text("garbage")

    with pytest.raises(IdentityUnusable):
        HostTls(attrs.evolve(identity))

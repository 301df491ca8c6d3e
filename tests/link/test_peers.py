"""By what is on record of a host, its certificate is accepted or refused in words."""

from __future__ import annotations

import ssl

import attrs
import pytest
import trio

from capyctl.domain.hosts import HostRecord, HostState
from capyctl.link.peers import (
    is_foreign,
    peer_fingerprint,
    peer_host_id,
    peer_server_id,
    refusal,
    why_refused,
)
from tests.link.trust import A, B

RECORD = HostRecord(id=A, name="gpu-1")


@attrs.frozen
class Shown:
    """A connection whose other side showed a certificate with these URIs."""

    uris: tuple[str, ...] = (f"urn:capyctl:host:{A}",)
    der: bytes | None = b"der"

    def getpeercert(self, binary_form=False, /):
        if binary_form:
            return self.der
        names = [("URI", uri) for uri in self.uris]
        return {"subjectAltName": (*names, ("DNS", "x.host.capyctl.internal"))}


@pytest.fixture
def record():
    return attrs.evolve(RECORD, certificates=("0" * 64, peer_fingerprint(Shown())))


def test_one_that_is_on_record_goes_on(record):
    assert refusal(Shown(), record) is None
    assert refusal(Shown(), record, expected=A) is None


@pytest.mark.parametrize(
    ("uris", "host", "server"),
    [
        ((f"urn:capyctl:host:{A}",), A, None),
        (("urn:capyctl:server:S",), None, "S"),
        ((), None, None),
        (("urn:other",), None, None),
        ((f"urn:capyctl:host:{A}", "urn:capyctl:server:S"), None, None),
    ],
)
def test_a_certificate_names_one_machine_or_none(uris, host, server):
    assert (peer_host_id(Shown(uris)), peer_server_id(Shown(uris))) == (host, server)


def test_without_a_certificate_there_is_nobody():
    @attrs.frozen
    class Nobody:
        def getpeercert(self, binary_form=False, /):
            return None

    assert (peer_host_id(Nobody()), peer_fingerprint(Nobody())) == (None, None)
    assert refusal(Nobody(), RECORD).code == "host_unknown"


@pytest.mark.parametrize(
    ("shown", "change", "expected", "code", "words"),
    [
        (Shown(), {"state": HostState.REVOKED}, None, "host_revoked", "join host --recover"),
        (Shown(der=b"x"), {}, None, "host_identity_superseded", "capyctl revoke host gpu-1"),
        (Shown(), {}, B, "host_mismatch", "check the addresses"),
        (Shown(("urn:capyctl:server:S",)), {}, None, "host_unknown", "not one of a host"),
    ],
)
def test_others_are_refused_in_words(record, shown, change, expected, code, words):
    found = refusal(shown, attrs.evolve(record, **change), expected=expected)

    assert found.code == code
    assert words in found.message


def test_a_host_that_is_not_on_record_is_told_why():
    found = refusal(Shown(), None)

    assert found.code == "host_unknown"
    assert A in found.message
    assert "older backup" in found.message


def test_what_has_nothing_to_do_with_tls_is_left_to_others():
    assert why_refused(OSError("down")) is None
    assert why_refused(trio.BrokenResourceError()) is None
    assert why_refused(ssl.SSLError(1, "[SSL] something else")) is None
    assert not is_foreign(OSError("down"))
    assert not is_foreign(ssl.SSLError(1, "[SSL] something else"))

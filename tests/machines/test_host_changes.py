"""Changes of machines: drains, revocations, invitations and their use."""

from __future__ import annotations

import json

import attrs
import pytest

from capyctl.domain.certificates import IssuedCertificate
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import HostState, Invitation
from capyctl.machines.host_changes import decide_host, enrolled, host_named, invited
from capyctl.messages.deployment import ReceiptKey
from capyctl.messages.hosts import DrainHost, EnrolHost, RevokeHost, UndrainHost
from tests.machines.machines_of import A, B, hosts, record
from tests.machines.making import NOW_MS

KEY = ReceiptKey(scope="hosts", key="k", fingerprint="f")
INVITATION = Invitation(
    id="I" * 26, host_name="gpu-a", secret_digest="5ec2e7", expires_at_ms=NOW_MS + 1000
)
REVOKED = record(A, state=HostState.REVOKED, revoked_at_ms=5)


def change(kind, host=A):
    return kind(host=host, receipt=KEY)


def decided(known, kind):
    return decide_host(known, change(kind), now_ms=NOW_MS)


def refused(fn, *args, **more) -> str:
    with pytest.raises(Refused) as caught:
        fn(*args, **more)
    return caught.value.code


def test_a_drain_is_on_record_with_its_event_and_receipt():
    found = decided(record(A), DrainHost)

    assert found.puts == (record(A, draining=True),)
    assert [e.kind for e in found.events] == ["host_draining"]
    assert found.events[0].payload == {"host_id": A, "host_name": "gpu-a"}
    assert json.loads(found.response) == {
        "action": "drain",
        "api_version": "1",
        "host_id": A,
        "host_name": "gpu-a",
        "joined": False,
    }


def test_undrain_takes_it_back():
    found = decided(record(A, draining=True), UndrainHost)

    assert found.puts == (record(A),)
    assert [e.kind for e in found.events] == ["host_undrained"]


@pytest.mark.parametrize(
    ("known", "kind"),
    [(record(A, draining=True), DrainHost), (record(A), UndrainHost), (REVOKED, RevokeHost)],
)
def test_what_is_so_already_is_joined_and_changes_nothing(known, kind):
    found = decided(known, kind)

    assert (found.puts, found.events) == ((), ())
    assert json.loads(found.response)["joined"] is True


def test_a_revocation_keeps_what_is_known_of_the_host():
    found = decided(record(A), RevokeHost)

    (after,) = found.puts
    assert (after.state, after.revoked_at_ms) == (HostState.REVOKED, NOW_MS)
    assert after.certificates == record(A).certificates
    assert [e.kind for e in found.events] == ["host_revoked"]


@pytest.mark.parametrize("kind", [DrainHost, UndrainHost])
def test_a_revoked_host_is_neither_drained_nor_used(kind):
    assert refused(decided, REVOKED, kind) == "lifecycle_conflict"


def test_an_unknown_host_is_not_found():
    assert refused(decided, None, DrainHost) == "not_found"


def test_of_several_with_a_name_the_one_in_use_counts():
    old = record(A, name="x", state=HostState.REVOKED, revoked_at_ms=1)
    later = record(B, name="x", state=HostState.REVOKED, revoked_at_ms=2)

    assert host_named([old, later], "x") == later
    assert host_named([old, record(B, name="x")], "x").id == B
    assert host_named([old], "y") is None


# -- invitations -----------------------------------------------------------------------------


def test_an_invitation_is_stored_and_its_receipt_has_no_secret():
    found = invited([record(B)], INVITATION)

    assert found.puts == (INVITATION,)
    assert [e.kind for e in found.events] == ["host_invited"]
    assert INVITATION.secret_digest not in found.response


def test_a_name_in_use_is_not_given_twice():
    assert refused(invited, [record(A)], INVITATION) == "lifecycle_conflict"
    assert invited([REVOKED], INVITATION).puts == (INVITATION,)


def test_only_a_revoked_host_is_recovered():
    back = attrs.evolve(INVITATION, recover=A)

    assert refused(invited, [record(A)], back) == "host_not_revoked"
    assert refused(invited, [], back) == "not_found"
    assert [e.kind for e in invited([REVOKED], back).events] == ["host_recovery_invited"]


def enrol(known, invitation, *, now_ms=NOW_MS, **changes):
    asked = EnrolHost(invitation="I" * 26, host=record(A, publication=None), key_digest="k")
    return enrolled(known, invitation, attrs.evolve(asked, **changes), now_ms=now_ms)


def test_a_new_host_and_its_certificate_are_stored_and_the_invitation_is_used_up():
    issued = IssuedCertificate(
        serial="1", host=A, fingerprint="f", key_digest="k", issued_at_ms=1, expires_at_ms=2, pem=""
    )

    found = enrol({}, INVITATION, issued=(issued,))

    host, used, certificate = found.puts
    assert host == record(A, publication=None)
    assert (used.used_at_ms, used.host, used.key_digest) == (NOW_MS, A, "k")
    assert certificate == issued
    assert [e.kind for e in found.events] == ["host_enrolled"]


def test_the_machine_that_used_it_may_ask_again():
    _, used = enrol({}, INVITATION).puts
    known = hosts(record(A))

    again = enrol(known, used)

    assert (again.puts, again.record) == ((), known[A])
    assert refused(enrol, known, used, key_digest="other") == "forbidden"
    assert refused(enrol, known, used, key_digest=None) == "forbidden"


def test_an_invitation_is_for_a_while_and_for_a_name():
    assert refused(enrol, {}, INVITATION, now_ms=INVITATION.expires_at_ms) == "forbidden"
    assert refused(enrol, {}, INVITATION, host=record(B)) == "forbidden"
    assert refused(enrol, {}, None) == "not_found"


def test_a_name_that_was_taken_meanwhile_is_refused():
    known = hosts(record(B, name="gpu-a"))

    assert refused(enrol, known, INVITATION) == "lifecycle_conflict"


def test_a_recovered_host_keeps_all_but_its_certificates():
    back = attrs.evolve(INVITATION, recover=A)
    fresh = record(A, certificates=("new",), publication=None)

    found = enrol(hosts(attrs.evolve(REVOKED, draining=True)), back, host=fresh)

    after = found.puts[0]
    assert after == record(A, certificates=("new",), draining=True)
    assert [e.kind for e in found.events] == ["host_recovered"]
    assert refused(enrol, hosts(record(A)), back) == "host_not_revoked"

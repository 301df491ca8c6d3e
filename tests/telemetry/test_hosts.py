"""One machine's entry: what is on record, what is charged, and what somebody should look at."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.hosts import Compatibility, IngressAddress, IngressTransport
from capyctl.domain.ids import DomainName
from capyctl.domain.units import GIB
from capyctl.machines.link import CAPABILITIES
from capyctl.telemetry.hosts import HostedInstance, HostParts, HostUse, render_host, warnings
from capyctl.wire.openapi_hosts import Host
from tests.machines.machines_of import A, publication

CARD = DomainName("gpu0")
NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
INGRESS = IngressAddress(host="10.0.0.5", port=8444)
ONE = HostedInstance(deployment="0" * 26, name="chat", index=0, observed="ready")
WELL = HostParts(
    id=A,
    name="gpu-a",
    state="online",
    state_s=12.5,
    publication=publication(A, ingress=INGRESS, labels={"zone": "1"}),
    enrolled_at_ms=NOW_MS - DAY_MS,
    certificate_expires_at_ms=NOW_MS + 60 * DAY_MS,
    now_ms=NOW_MS,
    use={CARD: HostUse(charged_bytes=10 * GIB, parked_bytes=GIB, available_bytes=12 * GIB)},
    sample_age_s=0.4,
    instances=(ONE,),
)


def of(**changes):
    return attrs.evolve(WELL, **changes)


def test_a_host_that_is_well_has_nothing_to_warn_of():
    entry = render_host(WELL)

    assert entry["warnings"] == []
    assert (entry["state"], entry["eligible"], entry["state_ms"]) == ("online", True, 12500)
    assert entry["memory"] == [
        {
            "domain": "gpu0",
            "kind": "device",
            "total_bytes": str(24 * GIB),
            "managed_limit_bytes": str(24 * GIB),
            "free_reserve_bytes": str(GIB),
            "parked_limit_bytes": str(8 * GIB),
            "charged_bytes": str(10 * GIB),
            "parked_bytes": str(GIB),
            "outside_bytes": "0",
            "available_bytes": str(12 * GIB),
        }
    ]
    assert entry["ingress"] == {"host": "10.0.0.5", "port": 8444, "transport": "mutual_tls"}
    assert entry["instances"] == [
        {"deployment_id": "0" * 26, "name": "chat", "index": 0, "observed_state": "ready"}
    ]
    assert "ineligible_reason" not in entry


def test_one_that_never_connected_is_shown_and_says_so():
    entry = render_host(of(publication=None, state="offline", ineligible="it has not connected"))

    assert (entry["binary_version"], entry["memory"], entry["ingress"]) == (None, [], None)
    assert (entry["eligible"], entry["ineligible_reason"]) == (False, "it has not connected")
    assert any("never connected" in one for one in entry["warnings"])


def test_what_a_host_lacks_and_what_its_memory_needs_is_told_apart():
    able = publication(A, capabilities=CAPABILITIES, ingress=INGRESS)
    old = attrs.evolve(able, capabilities=CAPABILITIES[1:])

    assert render_host(of(publication=able))["session"] == {
        "capabilities_missing": [],
        "memory_warnings": [],
    }
    entry = render_host(of(publication=old, sample_age_s=31.0))
    assert entry["session"]["capabilities_missing"] == [CAPABILITIES[0]]
    (warned,) = entry["session"]["memory_warnings"]
    assert "31 s ago" in warned
    assert warned in entry["warnings"]
    never = render_host(of(publication=None, state="offline"))
    assert never["session"]["capabilities_missing"] == []


@pytest.mark.parametrize(
    ("instances", "drained"), [((), True), ((ONE,), False)], ids=["empty", "not yet"]
)
def test_drained_is_once_nothing_is_left(instances, drained):
    entry = render_host(of(draining=True, instances=instances))

    assert (entry["draining"], entry["drained"]) == (True, drained)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"state": "offline", "state_s": 90.0}, "for 90 s; what runs there stays charged"),
        ({"state": "suspended", "state_s": 7.0, "instances": ()}, "for 7 s. See that capyctl"),
        ({"rival": "10.0.0.7"}, "at 10.0.0.7, comes with its identity and is refused"),
        ({"state": "revoked"}, "1 of its instances stay charged"),
        ({"compatibility": Compatibility.UPGRADE_REQUIRED}, "too old for this server"),
        ({"compatibility": Compatibility.SERVER_BEHIND}, "upgrade the server first"),
        ({"sample_age_s": None}, "not looked at yet"),
        ({"sample_age_s": 31.0}, "last looked at 31 s ago"),
        ({"use": {CARD: HostUse(outside_bytes=3 * GIB)}}, "hold 3.0 GiB of gpu0 memory"),
        ({"certificate_expires_at_ms": NOW_MS - 1}, "has expired"),
        ({"certificate_expires_at_ms": NOW_MS + DAY_MS}, "expires in 24 hours"),
        ({"publication": publication(A, profiles=())}, "publishes no engine"),
        (
            {
                "publication": publication(
                    A,
                    ingress=attrs.evolve(INGRESS, transport=IngressTransport.TRUSTED_PRIVATE_LINK),
                )
            },
            "plain HTTP",
        ),
        ({"instances": (attrs.evolve(ONE, observed="uncertain"),)}, "chat/0. Stop them again"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_what_somebody_should_look_at_is_said_in_words(changes, told):
    (only,) = warnings(of(**changes))

    assert told in only


def test_a_revoked_host_is_not_warned_of_for_its_certificate_or_its_memory():
    gone = of(state="revoked", instances=(), certificate_expires_at_ms=0, sample_age_s=None)

    assert warnings(gone) == ()


@pytest.mark.parametrize(
    "parts", [WELL, of(publication=None, state="offline"), of(state="revoked", revoked_at_ms=1)]
)
def test_the_description_of_the_api_fits_it(parts):
    Host.model_validate(render_host(parts), strict=True)


def test_a_profile_says_whether_it_parks_and_which_deployments_are_there():
    names = [profile.name for profile in WELL.publication.profiles]
    twice = attrs.evolve(ONE, index=1, profile=names[0])

    shown = render_host(of(instances=(attrs.evolve(ONE, profile=names[0]), twice)))["profiles"]

    assert [one["name"] for one in shown] == names
    assert shown[0]["deployments"] == ["chat"]
    assert all(one["deployments"] == [] for one in shown[1:])
    assert [one["deep_park"] for one in shown] == [p.deep_park for p in WELL.publication.profiles]

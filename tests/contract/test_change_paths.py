"""Ids in paths: a deployment by its ULID as it is printed, an instance by its decimal index."""

from __future__ import annotations

import pytest

from tests.contract.rows import ACTION, CONFIG, ULID

BAD_IDS = {
    "name": "my-model",
    "lower-case": ULID.lower(),
    "mixed-case": ULID[:20] + ULID[20:].lower(),
    "escaped": f"%30{ULID[1:]}",
    "escaped-letter": ULID.replace("M", "%4D", 1),
    "too-short": ULID[:-1],
    "too-long": f"{ULID}0",
    "too-large": "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
    "letter-I": f"{ULID[:-1]}I",
    "letter-L": f"{ULID[:-1]}L",
    "letter-O": f"{ULID[:-1]}O",
    "letter-U": f"{ULID[:-1]}U",
    "escaped-slash": f"{ULID}%2F",
    "escaped-nul": f"{ULID}%00",
    "space": f"%20{ULID}",
    "plus": f"+{ULID[1:]}",
    "dash": f"{ULID[:8]}-{ULID[9:]}",
    "broken-escape": f"{ULID[:-1]}%",
    "dots": "..",
}
BAD_INDEXES = ["01", "00", "x", "64", "100", "-1", "+1", "1.0", "%30", "1e1", "0x1", "", "%D9%A3"]
ROUTES = {
    "replace": ("PUT", "/deployments/{id}", {"config": CONFIG, "expected_revision": 1}),
    "action": ("POST", "/deployments/{id}/actions", ACTION),
    "instance-action": ("POST", "/deployments/{id}/instances/0/actions", ACTION),
}


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("id", BAD_IDS.values(), ids=BAD_IDS)
def test_anything_but_a_printed_ulid_is_400(target, route, id):
    method, path, body = route

    answer = target.change(method, path.format(id=id), body)

    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize("index", [index for index in BAD_INDEXES if index])
def test_anything_but_an_index_below_64_is_400(target, index):
    answer = target.change("POST", f"/deployments/{ULID}/instances/{index}/actions", ACTION)

    assert (answer.status, answer.code) == (400, "invalid_request")


def test_no_index_is_an_unknown_path(target):
    answer = target.change("POST", f"/deployments/{ULID}/instances//actions", ACTION)

    assert answer.code == "not_found"


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_an_id_of_nobody_is_404(target, route):
    method, path, body = route
    full = {**body, "config": CONFIG} if "config" in body else body

    answer = target.change(method, path.format(id=ULID), full)

    assert answer.status in (400, 404, 409)
    if method == "POST":
        assert answer.code == "not_found"


@pytest.mark.parametrize("index", ["0", "9", "10", "63"])
def test_an_instance_of_nobody_is_404(target, index):
    answer = target.change("POST", f"/deployments/{ULID}/instances/{index}/actions", ACTION)

    assert answer.code == "not_found"


def test_the_name_of_a_deployment_is_400_in_a_change(stopped):
    fleet, id = stopped
    name = fleet.row(id)["name"]

    answer = fleet.send_action(name, fleet.action(id, "stop"))

    assert (answer.status, answer.code) == (400, "invalid_request")


def test_the_id_in_lower_case_is_400_though_it_exists(stopped):
    fleet, id = stopped

    answer = fleet.send_action(id.lower(), fleet.action(id, "stop"))

    assert (answer.status, answer.code) == (400, "invalid_request")

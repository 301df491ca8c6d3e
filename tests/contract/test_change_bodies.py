"""Bodies of changes: how large and how slow, strict JSON, strict shapes, whole numbers."""

from __future__ import annotations

import json
import time

import pytest

from tests.contract.fleet import fresh_key
from tests.contract.rows import CHANGES, CONFIG, ULID
from tests.contract.speaking import PREFIX

KEYED = [("Idempotency-Key", "a-key"), ("Content-Type", "application/json")]
BODY_BYTES_MAX = 1 << 20
NO_JSON = {
    "nothing": b"",
    "space": b"  ",
    "a-brace": b"{",
    "text": b"start",
    "single-quotes": b"{'action': 'stop'}",
    "trailing-comma": b'{"a":1,}',
    "comment": b'{"a":1} // x',
    "trailing-data": b"{} {}",
    "trailing-brace": b"{}}",
    "nan": b'{"a":NaN}',
    "infinity": b'{"a":-Infinity}',
    "leading-zero": b'{"a":01}',
    "plus": b'{"a":+1}',
    "bare-key": b"{a:1}",
    "control-character": b'{"a":"\x01"}',
    "not-utf-8": b'{"a":"\xff"}',
    "utf-16": '{"a":1}'.encode("utf-16"),
    "byte-order-mark": b"\xef\xbb\xbf{}",
    "truncated-escape": b'{"a":"\\u12"}',
    "deep": b'{"a":' + b"[" * 200 + b"]" * 200 + b"}",
    "very-deep": b"[" * 100_000,
}
NO_OBJECT = {"list": b"[]", "null": b"null", "number": b"1", "text": b'"x"', "true": b"true"}
TWICE = {
    "at-the-top": b'{"config":{},"config":{},"activate":false}',
    "escaped": b'{"config":{},"\\u0063onfig":{},"activate":false}',
    "in-the-config": b'{"config":{"name":"a","name":"b"},"activate":false}',
    "equal-values": b'{"config":{"name":"a","name":"a"},"activate":false}',
    "deep-in-a-list": b'{"config":{"devices":[{"id":1,"id":1}]},"activate":false}',
}
CREATES = {
    "empty": {},
    "no-activate": {"config": CONFIG},
    "no-config": {"activate": False},
    "config-null": {"config": None, "activate": False},
    "config-list": {"config": [], "activate": False},
    "config-text": {"config": "name: x", "activate": False},
    "activate-text": {"config": CONFIG, "activate": "false"},
    "activate-number": {"config": CONFIG, "activate": 0},
    "activate-null": {"config": CONFIG, "activate": None},
    "a-revision": {"config": CONFIG, "activate": False, "expected_revision": 1},
    "unknown-field": {"config": CONFIG, "activate": False, "dry_run": True},
    "upper-case-field": {"Config": CONFIG, "activate": False},
}
REPLACES = {
    "empty": {},
    "no-revision": {"config": CONFIG},
    "no-config": {"expected_revision": 1},
    "an-activate": {"config": CONFIG, "expected_revision": 1, "activate": False},
    "unknown-field": {"config": CONFIG, "expected_revision": 1, "x": None},
    "config-null": {"config": None, "expected_revision": 1},
}
STOP = {"action": "stop", "expected_revision": 1, "deadline_ms": 1}
ACTIONS = {
    "empty": {},
    "no-action": {"expected_revision": 1, "deadline_ms": 1},
    "no-revision": {"action": "stop", "deadline_ms": 1},
    "no-deadline": {"action": "stop", "expected_revision": 1},
    "action-null": {**STOP, "action": None},
    "action-number": {**STOP, "action": 1},
    "action-empty": {**STOP, "action": ""},
    "action-unknown": {**STOP, "action": "restart"},
    "action-in-capitals": {**STOP, "action": "STOP"},
    "action-with-space": {**STOP, "action": "stop "},
    "a-generation": {**STOP, "generation": "1"},
    "a-principal": {**STOP, "principal": "me"},
    "evidence": {**STOP, "evidence": {}},
    "evict-text": {**STOP, "action": "start", "evict": "true"},
    "evict-number": {**STOP, "action": "start", "evict": 1},
    "evict-null": {**STOP, "action": "start", "evict": None},
    "evict-on-stop": {**STOP, "evict": True},
    "evict-on-park": {**STOP, "action": "park", "evict": True},
    "evict-on-preinitialize": {**STOP, "action": "preinitialize", "evict": True},
    "evict-on-delete": {**STOP, "action": "delete", "evict": True},
}
NO_NUMBERS = {
    "text": '"1"',
    "float": "1.0",
    "exponent": "1e3",
    "true": "true",
    "false": "false",
    "null": "null",
    "zero": "0",
    "negative": "-1",
    "too-large": "9223372036854775808",
    "far-too-large": "1" + "0" * 400,
    "list": "[1]",
    "object": "{}",
}


def refused(answer):
    return (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
def test_what_is_no_strict_json_is_400(target, change, body):
    assert refused(target.change(change[0], change[1], body))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("body", NO_OBJECT.values(), ids=NO_OBJECT)
def test_what_is_no_object_is_400(target, change, body):
    assert refused(target.change(change[0], change[1], body))


@pytest.mark.parametrize("body", TWICE.values(), ids=TWICE)
def test_a_key_twice_at_any_depth_is_400(target, body):
    assert refused(target.change("POST", "/deployments", body))


@pytest.mark.parametrize("body", CREATES.values(), ids=CREATES)
def test_a_create_of_another_shape_is_400(target, body):
    assert refused(target.change("POST", "/deployments", body))


@pytest.mark.parametrize("body", REPLACES.values(), ids=REPLACES)
def test_a_replace_of_another_shape_is_400(target, body):
    assert refused(target.change("PUT", f"/deployments/{ULID}", body))


@pytest.mark.parametrize("path", ["actions", "instances/0/actions"])
@pytest.mark.parametrize("body", ACTIONS.values(), ids=ACTIONS)
def test_an_action_of_another_shape_is_400(target, path, body):
    assert refused(target.change("POST", f"/deployments/{ULID}/{path}", body))


@pytest.mark.parametrize("field", ["expected_revision", "deadline_ms"])
@pytest.mark.parametrize("number", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_numbers_of_an_action_are_whole_and_in_range(target, field, number):
    body = json.dumps({**STOP, field: "NUMBER"}).replace('"NUMBER"', number).encode()

    assert refused(target.change("POST", f"/deployments/{ULID}/actions", body))


@pytest.mark.parametrize("number", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_the_revision_of_a_replace_is_whole_and_in_range(target, number):
    body = json.dumps({"config": CONFIG, "expected_revision": "NUMBER"})

    sent = body.replace('"NUMBER"', number).encode()

    assert refused(target.change("PUT", f"/deployments/{ULID}", sent))


@pytest.mark.parametrize("number", [1, 2**53 + 1, 2**63 - 1])
def test_whole_numbers_up_to_63_bits_pass_the_shape(target, number):
    body = {"action": "stop", "expected_revision": number, "deadline_ms": number}

    assert target.change("POST", f"/deployments/{ULID}/actions", body).code == "not_found"


def test_nothing_sent_is_ever_repeated_in_a_message(target):
    body = {"config": {"name": "x", "sesame": "open-sesame"}, "activate": False}

    answer = target.change("POST", "/deployments", body)

    assert b"open-sesame" not in answer.body


def test_activate_true_is_503_and_cannot_be_retried(target):
    answer = target.change("POST", "/deployments", {"config": CONFIG, "activate": True})

    assert (answer.status, answer.code) == (503, "unsupported_capability")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_megabyte_and_one_byte_is_413(target, change):
    answer = target.change(change[0], change[1], b" " * (BODY_BYTES_MAX + 1))

    assert (answer.status, answer.code) == (413, "body_too_large")


def test_a_body_announced_too_large_is_413_before_it_comes(target):
    answer = target.change("POST", "/deployments", b"", length=1 << 40)

    assert (answer.status, answer.code) == (413, "body_too_large")


def test_a_body_of_exactly_a_megabyte_is_read(target):
    body = json.dumps({"config": {"name": "x"}, "activate": False}).encode()

    answer = target.change("POST", "/deployments", body.ljust(BODY_BYTES_MAX))

    assert answer.code == "invalid_config"


def test_a_chunked_body_is_a_body(fleet):
    body = json.dumps({"config": fleet.document(), "activate": False}).encode()
    lines = [
        f"POST {PREFIX}/deployments HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {fleet.target.token}",
        f"Idempotency-Key: {fresh_key()}",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
    ]
    chunks = b"".join(b"%x\r\n%s\r\n" % (1, body[at : at + 1]) for at in range(len(body)))

    answer = fleet.target.ask_raw("\r\n".join(lines).encode() + b"\r\n\r\n" + chunks + b"0\r\n\r\n")

    assert answer.status == 202
    fleet.made.append(answer.json()["deployment_id"])


def test_a_chunked_body_beyond_a_megabyte_is_413(target):
    lines = [
        f"POST {PREFIX}/deployments HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {target.token}",
        "Idempotency-Key: k",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
    ]
    piece = b"40000\r\n" + b" " * 0x40000 + b"\r\n"

    answer = target.ask_raw("\r\n".join(lines).encode() + b"\r\n\r\n" + piece * 5 + b"0\r\n\r\n")

    assert answer.code == "body_too_large"


def test_a_body_that_does_not_come_in_5_seconds_is_504(target):
    with target.connect() as connection:
        request = target.request(
            "POST", f"{PREFIX}/deployments", headers=KEYED, body=b'{"config"', length=1000
        )
        connection.send(request)
        began = time.monotonic()

        answer = target.checked(connection.answer())

        assert (answer.status, answer.code) == (504, "deadline_exceeded")
        assert 4.5 <= time.monotonic() - began <= 14.0


def test_two_slow_bodies_fill_the_changes_until_they_are_given_up(target):
    slow = target.request("POST", f"{PREFIX}/deployments", headers=KEYED, body=b"{", length=100)
    with target.connect() as first, target.connect() as second:
        first.send(slow)
        second.send(slow)
        full = until_full(target)
        others = {name: target.change(*row).code for name, row in CHANGES.items()}
        read = target.ask("GET", "/snapshot")
        codes = [target.checked(one.answer()).code for one in (first, second)]
    after = target.change(*CHANGES["action"])

    assert (full.status, full.code) == (429, "queue_full")
    assert set(others.values()) == {"queue_full"}
    assert read.status == 200
    assert codes == ["deadline_exceeded"] * 2
    assert after.code == "not_found"


def test_a_refused_header_takes_no_place_among_the_changes(target):
    slow = target.request("POST", f"{PREFIX}/deployments", headers=KEYED, body=b"{", length=100)
    with target.connect() as first, target.connect() as second:
        first.send(slow)
        second.send(slow)
        until_full(target)
        answer = target.change("POST", "/deployments", b"{}", key=None)
        first.send(b" " * 99)
        second.send(b" " * 99)
        codes = {target.checked(one.answer()).code for one in (first, second)}

    assert answer.code == "invalid_request"
    assert codes == {"invalid_request"}


def until_full(target):
    """The first refusal for want of a place; the bodies before it have arrived by then."""
    until = time.monotonic() + 3.0
    while (answer := target.change(*CHANGES["action"])).code != "queue_full":
        assert time.monotonic() < until
    return answer

"""Bodies of changes: what a refusal says and does not say, and what they are known by."""

from __future__ import annotations

import json

import pytest

from capyctl.domain.errors import Refused
from capyctl.wire.bodies import ActionBody, read_action, read_create, read_replace

ACTION = {"action": "start", "expected_revision": 1, "deadline_ms": 2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"sw0rdfish": "s3cret"},
            "The body may only hold action, expected_revision, deadline_ms, evict",
        ),
        ({"deadline_ms": "s3cret"}, f"deadline_ms must be a whole number from 1 to {2**63 - 1}"),
        ({"action": 7}, "action must be a string"),
        ({"evict": "s3cret"}, "evict must be true or false"),
        (
            {"action": "s3cret"},
            "The action must be one of delete, park, preinitialize, start, stop",
        ),
    ],
)
def test_a_refusal_names_the_field_and_not_the_value(fields, message):
    with pytest.raises(Refused) as problem:
        read_action(json.dumps({**ACTION, **fields}).encode())

    assert problem.value.message == message
    assert "s3cret" not in repr(problem.value.__cause__)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[]", "The body must be a JSON object"),
        (b'{"config":{}}', "The body lacks activate"),
        (b'{"config":[],"activate":false}', "config must be an object"),
        (b'{"config":{},"activate":0}', "activate must be true or false"),
    ],
)
def test_a_create_tells_what_it_lacks(body, message):
    with pytest.raises(Refused) as problem:
        read_create(body)

    assert (problem.value.code, problem.value.message) == ("invalid_request", message)


def test_an_absent_evict_is_false():
    explicit = read_action(json.dumps({**ACTION, "evict": False}).encode())

    assert read_action(json.dumps(ACTION).encode()) == explicit


def test_order_and_spacing_do_not_make_another_document():
    one = read_replace(b'{"config":{"a":1,"b":[{"c":"\\u00e9"}]},"expected_revision":3}')
    same = read_replace(
        '{ "expected_revision": 3, "config": {"b": [ {"c": "é"} ], "a": 1} }'.encode()
    )

    assert one.fingerprint("replace:x") == same.fingerprint("replace:x")


def test_anything_else_makes_another_one():
    bodies = [
        read_replace(text)
        for text in (
            b'{"config":{"a":1},"expected_revision":3}',
            b'{"config":{"a":1},"expected_revision":4}',
            b'{"config":{"a":"1"},"expected_revision":3}',
            b'{"config":{"a":true},"expected_revision":3}',
            b'{"config":{"a":[1]},"expected_revision":3}',
        )
    ]
    actions = [
        ActionBody(action=action, expected_revision=1, deadline_at_ms=deadline, evict=evict)
        for action, deadline, evict in [
            ("start", 2, False),
            ("start", 3, False),
            ("start", 2, True),
            ("stop", 2, False),
        ]
    ]
    create = read_create(b'{"config":{"a":1},"activate":false}')
    prints = [body.fingerprint("scope") for body in (*bodies, *actions, create)]
    prints.append(create.fingerprint("other scope"))

    assert len(set(prints)) == len(prints)

"""Creates, replaces and actions: their checks in order, their receipts, their refusals."""

from __future__ import annotations

import json

import pytest

from capyctl.domain.errors import Refused
from tests.api.clients import BEARER, CONFIG, HOST, JSON, PREFIX, action_body, running
from tests.api.fake_management import NOW_MS, REQUEST_DEADLINE_MS, FakeManagement

ULID = "01M5E0MPXN61STKHGZ6BTEFVM3"
IDEMPOTENCY = (b"idempotency-key", b"key")
CREATE = {"config": CONFIG, "activate": False}
CHANGES = [
    ("POST", "/deployments", CREATE),
    ("PUT", f"/deployments/{ULID}", {"config": CONFIG, "expected_revision": 1}),
    ("POST", f"/deployments/{ULID}/actions", action_body("stop")),
    ("POST", f"/deployments/{ULID}/instances/0/actions", action_body("stop")),
]


def nothing_recorded(fake):
    return not (fake.receipts or fake.operations or fake.events)


async def created(client, **config):
    return (await client.create(**config)).json()["deployment_id"]


async def test_a_create_is_answered_byte_for_byte(autojump_clock):
    async with running() as client:
        answer = await client.create()

    assert answer.status == 202
    assert answer.body == (
        b'{"api_version":"1","checkpoint_digest":"pending","deployment_id":"01M5E100000000000000000000",'
        b'"joined":false,"operation_id":"01M5E100000000000000000001","revision":"1"}'
    )


async def test_an_action_is_answered_with_exactly_five_keys(autojump_clock):
    async with running() as client:
        id = await created(client)
        answer = await client.act(id, "start", key="start")

    assert answer.status == 202
    assert answer.body == (
        b'{"api_version":"1","deployment_id":"01M5E100000000000000000000","joined":false,'
        b'"operation_id":"01M5E100000000000000000002","revision":"1"}'
    )


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
@pytest.mark.parametrize(
    "headers",
    [
        [JSON],
        [JSON, IDEMPOTENCY, IDEMPOTENCY],
        [JSON, (b"idempotency-key", b"   ")],
        [JSON, (b"idempotency-key", b"")],
        [JSON, (b"idempotency-key", b"k" * 257)],
        [JSON, (b"idempotency-key", b"a\tb")],
        [JSON, (b"idempotency-key", b"a\x7f")],
        [IDEMPOTENCY],
        [IDEMPOTENCY, JSON, JSON],
        [IDEMPOTENCY, (b"content-type", b"text/plain")],
        [IDEMPOTENCY, (b"content-type", b"application/json; charset=latin-1")],
        [IDEMPOTENCY, JSON, (b"content-encoding", b"identity")],
        [IDEMPOTENCY, JSON, (b"content-encoding", b"gzip")],
    ],
)
async def test_bad_headers_are_400_and_leave_nothing(method, path, body, headers, autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        answer = await client.ask(method, path, headers=headers, body=json.dumps(body).encode())

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert not fake.calls


@pytest.mark.parametrize(
    "headers",
    [
        [(b"idempotency-key", b"k" * 256), JSON],
        [(b"idempotency-key", "clé 鍵".encode()), JSON],
        [IDEMPOTENCY, (b"content-type", b"Application/JSON; Charset=UTF-8")],
    ],
)
async def test_these_headers_are_fine(headers, autojump_clock):
    async with running() as client:
        answer = await client.ask(
            "POST", "/deployments", headers=headers, body=json.dumps(CREATE).encode()
        )

    assert answer.status == 202


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", f"/deployments/{ULID.lower()}"),
        ("PUT", "/deployments/my-model"),
        ("POST", f"/deployments/%30{ULID[1:]}/actions"),
        ("POST", f"/deployments/{ULID}%2F/actions"),
        ("POST", "/deployments/8ZZZZZZZZZZZZZZZZZZZZZZZZZ/actions"),
        ("POST", f"/deployments/{ULID}0/actions"),
        ("POST", f"/deployments/{ULID.lower()}/instances/0/actions"),
        ("POST", f"/deployments/{ULID}/instances/01/actions"),
        ("POST", f"/deployments/{ULID}/instances/x/actions"),
        ("POST", f"/deployments/{ULID}/instances/64/actions"),
        ("POST", f"/deployments/{ULID}/instances/-1/actions"),
        ("POST", f"/deployments/{ULID}/instances/%30/actions"),
        ("POST", f"/deployments/{ULID}/instances/٣/actions".encode().decode("latin-1")),
    ],
)
async def test_bad_path_ids_are_400(method, path, autojump_clock):
    fake = FakeManagement()
    body = {"config": CONFIG, "expected_revision": 1} if method == "PUT" else action_body("stop")
    async with running(fake) as client:
        answer = await client.change(method, path, body)

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert not fake.calls


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_query_is_400(method, path, body, autojump_clock):
    async with running() as client:
        answer = await client.ask(
            method,
            path,
            headers=[JSON, IDEMPOTENCY],
            body=json.dumps(body).encode(),
            query=b"x=1",
        )

    assert answer.code == "invalid_request"


NO_ACTIONS = {
    "no JSON": b"{",
    "empty": b"",
    "not UTF-8": b'{"action":"\xff"}',
    "a list": b"[]",
    "trailing": json.dumps(action_body("stop")).encode() + b" 1",
    "a key twice": b'{"action":"stop","action":"stop","expected_revision":1,"deadline_ms":%d}'
    % (NOW_MS + 1000),
    "a key twice, escaped": b'{"action":"stop","\\u0061ction":"stop","expected_revision":1,'
    b'"deadline_ms":%d}' % (NOW_MS + 1000),
    "unknown field": json.dumps(action_body("stop", generation=1)).encode(),
    "principal": json.dumps(action_body("stop", principal="x")).encode(),
    "no action": b'{"expected_revision":1,"deadline_ms":1}',
    "unknown action": json.dumps(action_body("unknown")).encode(),
    "action in capitals": json.dumps(action_body("Start")).encode(),
    "evict on stop": json.dumps(action_body("stop", evict=True)).encode(),
    "evict as text": json.dumps(action_body("start", evict="true")).encode(),
    "evict as number": json.dumps(action_body("start", evict=1)).encode(),
    "evict null": json.dumps(action_body("start", evict=None)).encode(),
    "NaN": b'{"action":"stop","expected_revision":1,"deadline_ms":NaN}',
}
NO_NUMBERS = ['"1"', "1.0", "true", "false", "0", "-1", "9223372036854775808", "null", "1e3", "[1]"]


@pytest.mark.parametrize("body", NO_ACTIONS.values(), ids=NO_ACTIONS)
async def test_bad_actions_are_400_and_leave_nothing(body, autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        path = f"/deployments/{ULID}/actions"
        answer = await client.ask("POST", path, headers=[JSON, IDEMPOTENCY], body=body)

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert not fake.calls


@pytest.mark.parametrize("field", ["expected_revision", "deadline_ms"])
@pytest.mark.parametrize("number", NO_NUMBERS)
async def test_numbers_are_integers_in_range(field, number, autojump_clock):
    body = json.dumps(action_body("stop", revision=7, deadline_ms=8))
    body = body.replace({"expected_revision": " 7", "deadline_ms": " 8"}[field], f" {number}")
    async with running() as client:
        path = f"/deployments/{ULID}/actions"
        answer = await client.ask("POST", path, headers=[JSON, IDEMPOTENCY], body=body.encode())

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.json()["error"]["message"].startswith(field)


@pytest.mark.parametrize(
    "body",
    [
        {"config": CONFIG},
        {"activate": False},
        {"config": CONFIG, "activate": "false"},
        {"config": CONFIG, "activate": 0},
        {"config": CONFIG, "activate": None},
        {"config": [], "activate": False},
        {"config": "x", "activate": False},
        {"config": CONFIG, "activate": False, "dry_run": True},
    ],
)
async def test_bad_creates_are_400_and_leave_nothing(body, autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        answer = await client.change("POST", "/deployments", body)

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert not fake.calls


async def test_creating_active_is_unsupported_right_after_the_shape(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        answer = await client.change("POST", "/deployments", {"config": {}, "activate": True})

    assert (answer.status, answer.code) == (503, "unsupported_capability")
    assert answer.json()["error"]["retryable"] is False
    assert not fake.calls


async def test_nesting_is_bounded(autojump_clock):
    def nested(levels):
        return {**CREATE, "config": {**CONFIG, "routes": json.loads("[" * levels + "]" * levels)}}

    async with running() as client:
        deep = await client.change("POST", "/deployments", nested(127))
        shallow = await client.change("POST", "/deployments", nested(100))

    assert deep.code == "invalid_request"
    assert shallow.code != "invalid_request"


async def test_a_refused_document_tells_its_path(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        answer = await client.create(colour="red")

    assert answer.status == 400
    assert answer.json()["error"]["details"] == {"path": "colour"}
    assert nothing_recorded(fake)


async def test_an_unpublished_profile_is_409_with_what_there_is(autojump_clock):
    async with running() as client:
        answer = await client.create(engine="sglang")

    assert (answer.status, answer.code) == (409, "profile_not_published")
    assert answer.json()["error"]["details"]["hosts"] == {"here": ["llamacpp", "vllm"]}


async def test_a_megabyte_is_let_in_and_one_byte_more_is_413(autojump_clock):
    async with running() as client:
        head = b'{"activate":false,"config":{"name":"x","pad":"'
        full = head + b"x" * (1048576 - len(head) - 3) + b'"}}'
        answers = [
            await client.ask("POST", "/deployments", headers=[JSON, IDEMPOTENCY], body=body)
            for body in (full, full + b" ")
        ]

    assert len(full) == 1048576
    assert [a.code for a in answers] == ["invalid_config", "body_too_large"]
    assert answers[1].status == 413
    assert answers[1].json()["error"]["retryable"] is False


async def test_a_create_again_is_the_same_and_another_is_a_conflict(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        first = await client.create()
        again = await client.ask(
            "POST",
            "/deployments",
            headers=[JSON, (b"idempotency-key", b"create")],
            body=b'{ "activate" : false, "config": '
            b'{"model":"Qwen3-4B","engine":"vllm","name":"my-model"}}',
        )
        other_body = await client.create(model="other")
        other_key = await client.create(key="second")

    assert again.body == first.body
    assert again.status == 202
    assert other_body.code == "idempotency_conflict"
    assert other_key.code == "route_conflict"
    assert fake.calls["create"] == 2


async def test_a_create_is_found_again_without_its_profile(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        first = await client.create()
        fake.profiles.clear()
        again = await client.create()

    assert again.body == first.body


async def test_a_replace_names_the_revision_and_is_found_again(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        id = await created(client)
        body = {"config": CONFIG, "expected_revision": 1}
        first = await client.change("PUT", f"/deployments/{id}", body, key="a")
        again = await client.change("PUT", f"/deployments/{id}", body, key="a")
        stale = await client.change("PUT", f"/deployments/{id}", body, key="b")
        unknown = await client.change("PUT", f"/deployments/{ULID}", body, key="a")

    assert first.json()["revision"] == "2"
    assert again.body == first.body
    assert stale.body == (
        b'{"api_version":"1","error":{"code":"revision_conflict","details":{},'
        b'"message":"Expected revision does not match","operation_id":null,"retryable":false}}'
    )
    assert unknown.code == "not_found"


async def test_a_start_is_found_again_and_a_second_one_is_refused(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        id = await created(client)
        first = await client.act(id, "start", key="a")
        again = await client.act(id, "start", key="a")
        same = await client.act(id, "start", key="a", evict=False)
        second = await client.act(id, "start", key="b")

    assert first.body == again.body == same.body
    assert second.code == "runtime_retained"
    assert len(fake.operations) == 2


@pytest.mark.parametrize(
    "other",
    [
        action_body("stop"),
        action_body("park"),
        action_body("suspend"),
        action_body("start", deadline_ms=NOW_MS + 60_001),
        action_body("start", revision=2),
        action_body("start", evict=True),
    ],
)
async def test_a_key_with_another_action_is_a_conflict(other, autojump_clock):
    async with running() as client:
        id = await created(client)
        await client.act(id, "start", key="a")
        answer = await client.change("POST", f"/deployments/{id}/actions", other, key="a")

    assert (answer.status, answer.code) == (409, "idempotency_conflict")
    assert answer.json()["error"]["retryable"] is False


async def test_the_same_key_is_free_in_other_scopes(autojump_clock):
    async with running() as client:
        one = await created(client, key="key")
        two = await created(client, key="other", name="two")
        answers = [
            await client.act(one, "start", key="key"),
            await client.act(two, "start", key="key"),
            await client.change(
                "POST", f"/deployments/{one}/instances/0/actions", action_body("stop"), key="key"
            ),
            await client.change(
                "PUT", f"/deployments/{one}", {"config": CONFIG, "expected_revision": 1}, key="key"
            ),
        ]

    assert [answer.status for answer in answers] == [202] * 4


async def test_a_receipt_is_found_after_a_delete_and_after_the_end(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        id = await created(client)
        first = await client.act(id, "delete", key="delete")
        after_delete = await client.act(id, "delete", key="delete")
        new = await client.act(id, "start", key="new")
        fake.is_shut_down = True
        after_end = await client.create()
        refused = await client.create(key="late", name="late")

    assert after_delete.body == first.body
    assert new.code == "not_found"
    assert after_end.status == 202
    assert (refused.status, refused.code) == (503, "reconciliation_required")


async def test_a_refusal_leaves_the_key_free(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        id = await created(client)
        fake.refusal = Refused("checkpoint_digest_pending", "Not measured yet")
        refused = await client.act(id, "start", key="a")
        made = await client.act(id, "start", key="a", deadline_ms=NOW_MS + 1)

    assert (refused.status, refused.code) == (503, "checkpoint_digest_pending")
    assert refused.json()["error"]["retryable"] is True
    assert made.status == 202


async def test_actions_that_are_refused_record_nothing(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        id = await created(client)
        before = (len(fake.receipts), len(fake.operations), len(fake.events))
        codes = [
            (await client.act(id, action, key=action, **fields)).code
            for action, fields in [
                ("park", {}),
                ("suspend", {}),
                ("resume", {}),
                ("unknown", {}),
                ("start", {"revision": 2}),
                ("start", {"deadline_ms": NOW_MS}),
                ("start", {"deadline_ms": NOW_MS + REQUEST_DEADLINE_MS + 1}),
            ]
        ]

    assert codes == [
        "lifecycle_conflict",
        "unsupported_capability",
        "unsupported_capability",
        "invalid_request",
        "revision_conflict",
        "invalid_request",
        "invalid_request",
    ]
    assert (len(fake.receipts), len(fake.operations), len(fake.events)) == before


async def test_instances_are_started_and_stopped_alone(autojump_clock):
    async with running() as client:
        id = await created(client, instances=2)

        async def act(index, action):
            path = f"/deployments/{id}/instances/{index}/actions"
            return await client.change("POST", path, action_body(action), key=f"{index} {action}")

        empty = await act(1, "stop")
        started = await act(1, "start")
        unknown = await act(2, "start")
        parked = await act(1, "park")

    assert empty.body == (
        b'{"api_version":"1","deployment_id":"%s","instance":1,"joined":false,'
        b'"operation_id":null,"revision":"1"}' % id.encode()
    )
    assert started.json()["instance"] == 1
    assert unknown.code == "not_found"
    assert parked.code == "unsupported_capability"


async def test_an_evicting_start_names_its_victims_once(autojump_clock):
    async with running() as client:
        id = await created(client)
        first = (await client.act(id, "start", key="a", evict=True)).json()
        again = (await client.act(id, "start", key="a", evict=True)).json()

    assert first["victims"] == ["01M5E200000000000000000000/0"]
    assert first["switch_id"] == "01M5E300000000000000000000"
    assert again == {**first, "victims": [], "switch_id": None}


async def test_authentication_comes_first(autojump_clock):
    fake = FakeManagement()
    async with running(fake) as client:
        answer = await client.ask(
            "POST", f"{PREFIX}/deployments/x/actions", headers=[HOST], bare=True, query=b"x"
        )
        with_token = await client.ask(
            "POST", f"{PREFIX}/deployments/x/actions", headers=[HOST, BEARER], bare=True
        )

    assert answer.code == "unauthenticated"
    assert with_token.code == "invalid_request"

"""HTTP: names are opaque, and who asks wrongly hears what was wrong."""

import json

import pytest

from tests.dataplane.engines import answers, json_answer, post, world

NAMES = ("org/model", "m:7b-q4", "модель", "a b", "A", "a", "%2F", "..", "m")


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("name", NAMES)
async def test_a_name_is_one_word_whatever_is_in_it(name, ascii_only):
    async with world(answers(json_answer(b"{}"))) as plane:
        plane.route(*NAMES)
        body = json.dumps({"model": name}, ensure_ascii=ascii_only).encode()
        got = await plane.ask(post(body))
        record = await plane.record()

    assert got.status == 200
    assert record.model == name
    assert json.loads(plane.engines[0].requests[0].body) == {"model": "m"}


@pytest.mark.parametrize("name", ["ORG/MODEL", "org", "model", "B", "m ", ""])
async def test_a_name_that_is_nearly_right_is_unknown_and_lists_nobody(name):
    async with world(answers(json_answer(b"{}"))) as plane:
        plane.route(*NAMES)
        got = await plane.ask(post(json.dumps({"model": name}).encode()))

    assert got.status == (404 if name else 400)
    assert not any(known.encode() in got.body for known in ("org/model", "m:7b-q4"))

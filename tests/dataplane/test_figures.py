"""Figures of each engine family, and of the router where an engine tells none."""

import json

import pytest

from capyctl.dataplane.figures import Figures


def table(family: str, *events: dict, streamed: bool = True, at=(1.0, 1.5, 3.5)) -> dict:
    figures = Figures(family, 0.5, streamed=streamed)
    for event, now_s in zip(events, at, strict=False):
        figures.note_event(json.dumps(event).encode(), now_s)
    return {name: (f["value"], f["source"]) for name, f in figures.table().items()}


ROLE = {"choices": [{"delta": {"role": "assistant"}}]}
TEXT = {"choices": [{"delta": {"content": "a"}}]}


def test_the_routers_own_figures_run_from_forwarding_to_first_text_to_last_chunk():
    last = {"choices": [], "usage": {"completion_tokens": 5}}
    assert table("sglang", ROLE, TEXT, last) == {
        "ttft_ms": (1000.0, "router"),
        "decode_tokens_per_second": (2.0, "router"),
    }


def test_llamacpp_falls_back_to_its_own_count():
    last = {**TEXT, "timings": {"predicted_n": 5, "predicted_per_second": 0, "prompt_ms": 7.12345}}
    assert table("llamacpp", ROLE, TEXT, last) == {
        "ttft_ms": (1000.0, "router"),
        "prefill_ms": (7.123, "engine"),
        "decode_tokens_per_second": (2.0, "router"),
    }


def test_tensorfold_tells_seconds_and_zero_for_unknown():
    last = {
        **TEXT,
        "tensorfold": {
            "time_to_first_token": 0.25,
            "prefill_seconds": 0.125,
            "tokens_per_second": 0.0,
        },
    }
    assert table("tensorfold", last, streamed=False) == {
        "ttft_ms": (250.0, "engine"),
        "prefill_ms": (125.0, "engine"),
    }


@pytest.mark.parametrize(
    ("body", "into"),
    [
        (b"{}", b'{"capyctl":{"metrics":{}}}'),
        (b' {"a":1} \n', b'{"a":1,"capyctl":{"metrics":{}}}'),
        (b"[1]", b"[1]"),
        (b"", b""),
    ],
)
def test_figures_go_in_as_the_last_member(body, into):
    assert Figures("sglang", 0.0, streamed=False).into_answer(body) == into

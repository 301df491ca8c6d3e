"""Documents completed for several machines: which, by what profile, and what is refused."""

from __future__ import annotations

import json

import pytest

from capyctl.config.complete_hosts import (
    HostOffer,
    complete_for_hosts,
    labels_match,
    profile_on,
)
from capyctl.config.sources import SourcePolicy
from capyctl.domain.errors import Refused
from capyctl.domain.specs import Strategy
from tests.config.documents import CHECKS, COMMIT, MINIMAL, profile

A = HostOffer(id="01A", name="a", profiles=(profile("vllm"),), labels={"zone": "x"})
B = HostOffer(id="01B", name="b", profiles=(profile("local", "vllm"),), request_deadline_s=300.0)
C = HostOffer(id="01C", name="c", profiles=(profile("llamacpp"),))


def complete(document, *offers):
    return complete_for_hosts(document, offers or (A, B, C), checks=CHECKS)


def refusal(document, *offers) -> Refused:
    with pytest.raises(Refused) as refused:
        complete(document, *offers)
    return refused.value


def test_what_is_one_machines_own_is_left_out():
    spec = complete(MINIMAL)

    assert (spec.profile, spec.family) == ("vllm", "vllm")
    assert spec.model_path == "Qwen3-4B"
    assert spec.allowed_hosts == ()
    assert spec.request_deadline_s == 300
    document = json.loads(spec.document)
    assert document["runtime_profile"] == "vllm"
    assert "placement" not in document


def test_an_absolute_path_is_the_same_everywhere():
    assert complete({**MINIMAL, "model": "/data/m"}).model_path == "/data/m"


def test_a_model_that_is_fetched_has_a_path_below_the_models_directory():
    spec = complete({**MINIMAL, "model": {"hf": f"a/b@{COMMIT}"}})

    assert spec.model_path == f"sources/huggingface/a--b@{COMMIT}"
    assert spec.source.repository == "a/b"


def test_one_machine_that_may_fetch_it_is_enough():
    document = {**MINIMAL, "model": {"hf": f"a/b@{COMMIT}"}}
    closed = HostOffer(
        id="01D", name="0", profiles=A.profiles, sources=SourcePolicy(huggingface=False)
    )

    assert complete(document, closed, A).source is not None
    assert refusal(document, closed).kind.code == "invalid_config"


def test_named_hosts_by_name_or_id():
    assert complete({**MINIMAL, "host": "b"}).allowed_hosts == ("b",)
    spec = complete({**MINIMAL, "placement": {"hosts": ["01A", "b"], "max_per_host": 1}})

    assert spec.allowed_hosts == ("01A", "b")
    assert (spec.strategy, spec.max_per_host) == (Strategy.SPREAD, 1)
    assert json.loads(spec.document)["placement"] == {"hosts": ["01A", "b"], "max_per_host": 1}


def test_explicit_anywhere_is_explicit_everywhere():
    explicit = HostOffer(id="01D", name="d", profiles=A.profiles, explicit=True)

    assert complete(MINIMAL, A, explicit).explicit
    assert not complete({**MINIMAL, "host": "a"}, A, explicit).explicit


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"host": "nowhere"}, "host_ineligible", "nowhere"),
        ({"placement": {"hosts": ["a", "nowhere"]}}, "host_ineligible", "hosts here: a, b, c"),
        ({"placement": {"selector": {"zone": "y"}}}, "host_policy_denied", "(a, b, c)"),
        ({"host": "a", "placement": {"hosts": ["a"]}}, "invalid_config", "states the same"),
        ({"placement": {"hosts": ["a", "a"]}}, "invalid_config", "named twice"),
        (
            {"instances": 3, "placement": {"max_per_host": 1}},
            "invalid_config",
            "each of 2 hosts that can run it",
        ),
        ({"topology": {"tensor_parallel": 2}}, "unsupported_capability", "engine_groups"),
        ({"host": "c"}, "profile_not_published", "c publishes: llamacpp"),
        ({"engine": "sglang"}, "profile_not_published", "a: vllm; b: local; c: llamacpp"),
        ({"engine_config": {"extra_args": ["--port"]}}, "invalid_config", "accept_extra_args"),
        ({"nmae": "x"}, "invalid_config", "nmae"),
    ],
)
def test_refusals(changes, code, words):
    refused = refusal({**MINIMAL, **changes})

    assert refused.kind.code == code
    assert words in refused.message


def test_without_hosts_nothing_can_be_deployed():
    with pytest.raises(Refused, match="invite host") as refused:
        complete_for_hosts(MINIMAL, (), checks=CHECKS)
    assert refused.value.kind.code == "host_ineligible"


def test_a_profile_is_found_on_each_machine_by_name_or_family():
    spec = complete(MINIMAL)

    assert profile_on(spec, A.profiles).name == "vllm"
    assert profile_on(spec, B.profiles).name == "local"
    with pytest.raises(Refused, match="published: llamacpp"):
        profile_on(spec, C.profiles)
    with pytest.raises(Refused):
        profile_on(spec, (profile("v1", "vllm"), profile("v2", "vllm")))


def test_a_revision_that_is_stated_counts_on_each_machine():
    spec = complete({**MINIMAL, "runtime_profile_revision": 3})

    assert profile_on(spec, A.profiles).revision == 3
    with pytest.raises(Refused):
        profile_on(
            spec,
            (
                A.profiles[0].__class__(
                    name="vllm", family="vllm", revision=4, executable=("/v",), version="1"
                ),
            ),
        )


def test_the_selector_counts_for_machines_that_come_later():
    spec = complete({**MINIMAL, "placement": {"selector": {"zone": "x"}}})

    assert labels_match(spec, {"zone": "x", "more": "y"})
    assert not labels_match(spec, {})
    assert labels_match(complete(MINIMAL), {})

"""Completion of deployment documents, and every refusal with its path."""

from __future__ import annotations

import json

import attrs
import pytest

from capyctl.config.complete import HostDefaults, complete_offline
from capyctl.config.sources import SourcePolicy
from capyctl.domain.errors import Refused
from capyctl.domain.specs import ModelTask, Residency
from tests.config.documents import COMMIT, DEFAULTS, MINIMAL, PROFILES, complete, profile


def refusal(document, **changes) -> Refused:
    with pytest.raises(Refused) as refused:
        complete(document, **changes)
    return refused.value


def test_three_fields_suffice():
    spec = complete(MINIMAL)

    assert json.loads(spec.document) == {
        "schema_version": 1,
        "kind": "deployment",
        "name": "my-model",
        "runtime_profile": "vllm",
        "routes": ["my-model"],
        "recipe": "standard",
        "recovery": "reconcile",
        "model": {"path": "Qwen3-4B", "revision": "1", "content_fingerprint": "measured"},
    }
    assert spec.routes == ("my-model",)
    assert (spec.profile, spec.family) == ("vllm", "vllm")
    assert spec.model_path == "/models/Qwen3-4B"
    assert spec.request_deadline_s == 1800
    assert spec.residency is None
    assert spec.expected_digest is None


def test_a_fully_stated_document_means_what_it_states():
    spec = complete(
        {
            "schema_version": 1,
            "kind": "deployment",
            "name": "chat",
            "engine": "vllm",
            "runtime_profile": "vllm",
            "runtime_profile_revision": 3,
            "model": {
                "source": {"local": {"path": "/data/chat"}},
                "revision": "7",
                "content_fingerprint": f"sha256:{'a' * 64}",
            },
            "routes": ["chat", "gpt"],
            "recipe": "standard",
            "recovery": "reconcile",
            "residency": "deep",
            "placement": {"hosts": ["box"], "selector": {"zone": "a"}, "max_per_host": 2},
            "instances": 2,
            "topology": {"tensor_parallel": 1, "pipeline_parallel": 1},
            "devices": [{"id": "gpu1", "sharing": "shared"}],
            "engine_config": {
                "dtype": "bfloat16",
                "memory": {"request": "20GiB", "kv_cache": "4GiB", "startup": "24GiB"},
                "vllm": {"tool_call_parser": "none"},
                "trust_remote_code": True,
                "accept_extra_args": True,
                "extra_args": ["--seed", "1"],
                "env": {"MAX_JOBS": "2"},
            },
            "request_deadline": "10m",
            "timeouts": {"initialize": "5m", "wake": "20s"},
            "lifecycle": {"warm": True, "activation": "explicit"},
            "env": {},
        }
    )

    assert spec.model_path == "/data/chat"
    assert spec.expected_digest == f"sha256:{'a' * 64}"
    assert spec.routes == ("chat", "gpt")
    assert spec.residency is Residency.DEEP
    assert spec.instances == 2
    assert spec.allowed_hosts == ("box",)
    assert (spec.request_deadline_s, spec.initialize_s, spec.wake_s) == (600, 300, 20)
    assert spec.warm
    assert spec.explicit
    assert "engine" not in json.loads(spec.document)


def test_the_order_of_keys_does_not_show():
    assert complete(dict(reversed(MINIMAL.items()))) == complete(MINIMAL)


def test_only_the_count_differs():
    one = complete(MINIMAL)

    assert one.same_but_for_count(complete({**MINIMAL, "instances": 3}))
    assert not one.same_but_for_count(complete({**MINIMAL, "engine_config": {"dtype": "auto"}}))
    assert not one.same_but_for_count(complete({**MINIMAL, "placement": {"strategy": "pack"}}))


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("a/b", "/models/a/b"),
        ("/elsewhere/x/", "/elsewhere/x"),
        ({"path": "./x"}, "/models/x"),
        ({"source": {"type": "local", "path": "/y"}}, "/y"),
        ({"source": {"local": {"path": "y.gguf"}}}, "/models/y.gguf"),
    ],
)
def test_paths_of_models(model, path):
    assert complete({**MINIMAL, "model": model}).model_path == path


def test_a_host_may_leave_every_start_to_an_operator():
    assert complete(MINIMAL, defaults=HostDefaults(host="box", explicit=True)).explicit


def test_tensorfold_has_time_to_build_its_kernels():
    document = {
        "name": "m",
        "engine": "tensorfold",
        "model": "m",
        "engine_config": {"context_length": 4096},
        "resources": {"gpu": "11GiB", "ram": "2GiB"},
    }
    short = HostDefaults(host="box", request_deadline_s=600)

    assert complete(document, defaults=short).request_deadline_s == 1800


# Profiles


@pytest.mark.parametrize(
    ("stated", "profile_name"),
    [
        ({"engine": "vllm"}, "vllm"),
        ({"engine": "sglang"}, "quiet"),
        ({"runtime_profile": "old-llama"}, "old-llama"),
        ({"engine": "llamacpp", "runtime_profile": "old-llama"}, "old-llama"),
        ({"engine": "llamacpp"}, "llamacpp"),
    ],
)
def test_a_profile_is_found_by_name_or_family(stated, profile_name):
    assert complete({"name": "m", "model": "m", **stated}).profile == profile_name


@pytest.mark.parametrize(
    ("stated", "profiles"),
    [
        ({"engine": "other"}, PROFILES),
        ({"runtime_profile": "sglang"}, PROFILES),
        ({"engine": "vllm"}, ()),
        ({"engine": "vllm", "runtime_profile_revision": 2}, PROFILES),
        ({"engine": "llamacpp"}, (profile("a", "llamacpp"), profile("b", "llamacpp"))),
    ],
)
def test_a_profile_that_no_host_publishes_is_refused_with_what_there_is(stated, profiles):
    refused = refusal({"name": "m", "model": "m", **stated}, profiles=profiles)

    assert refused.code == "profile_not_published"
    assert refused.details == {
        "profile": next(iter(stated.values())),
        "hosts": {"box": [each.name for each in profiles]},
    }
    assert "box" in refused.message


# Refusals of single fields

TENSORFOLD = {"engine": "tensorfold", "engine_config": {"context_length": 1}}
LONG = {
    phase: {"allocations": [{"domain": "gpu0", "bytes": "9GiB"}]}
    for phase in ("cold", "ready", "parking", "parked", "wake")
}


def with_devices(*ids):
    phases = {name: dict(phase) for name, phase in LONG.items()}
    phases["ready"]["devices"] = [{"id": id} for id in ids]
    return phases


@pytest.mark.parametrize(
    ("changes", "kind", "path"),
    [
        ({"schema_version": 2}, "schema version / kind mismatch", "schema_version"),
        ({"schema_version": True}, "schema version / kind mismatch", "schema_version"),
        ({"kind": "host"}, "schema version / kind mismatch", "kind"),
        ({"kind": "host", "zzz": 1}, "schema version / kind mismatch", "kind"),
        ({"surprise": 1}, "unknown field", "surprise"),
        ({"name": None}, "unsupported combination", "name"),
        ({"name": " "}, "unsupported combination", "name"),
        ({"name": "a\nb"}, "unsupported combination", "name"),
        ({"name": "x" * 257}, "unsupported combination", "name"),
        ({"engine": None}, "missing required field", "engine"),
        ({"runtime_profile": "llamacpp"}, "conflicting arguments", "engine"),
        ({"routes": []}, "unsupported combination", "routes"),
        ({"routes": ["a", "a"]}, "unsupported combination", "routes"),
        ({"routes": ["a", 3]}, "unsupported combination", "routes[1]"),
        ({"recovery": "other"}, "unsupported combination", "recovery"),
        ({"residency": "warm"}, "unsupported combination", "residency"),
        ({"host": "box", "placement": {"hosts": ["box"]}}, "conflicting arguments", "host"),
        ({"placement": {"hosts": ["box", "box"]}}, "unsupported combination", "placement.hosts"),
        ({"placement": {"strategy": "best"}}, "unsupported combination", "placement.strategy"),
        ({"placement": {"region": 1}}, "unknown field", "placement.region"),
        (
            {"placement": {"max_per_host": 1}, "instances": 2},
            "unsupported combination",
            "placement.max_per_host",
        ),
        ({"instances": 0}, "unsupported combination", "instances"),
        ({"instances": 65}, "unsupported combination", "instances"),
        ({"instances": True}, "unsupported combination", "instances"),
        ({"instances": 1.0}, "unsupported combination", "instances"),
        ({"instances": "1"}, "unsupported combination", "instances"),
        ({"topology": {"tensor_parallel": 2}}, "unsupported combination", "topology"),
        ({"topology": {"pipeline_parallel": 3}}, "unsupported combination", "topology"),
        ({"devices": [{"id": "cuda0"}]}, "unsupported combination", "devices[0].id"),
        (
            {"devices": [{"id": "gpu0"}], "resources": with_devices("gpu1")},
            "conflicting arguments",
            "devices[0].id",
        ),
        ({"env": {"A": "b"}}, "unsupported combination", "env"),
        ({"lifecycle": {"warm": "yes"}}, "unsupported combination", "lifecycle.warm"),
        ({"lifecycle": {"activation": "never"}}, "unsupported combination", "lifecycle.activation"),
        # time
        ({"request_deadline": 30}, "invalid unit", "request_deadline"),
        ({"request_deadline": "30"}, "invalid unit", "request_deadline"),
        ({"request_deadline": "29s"}, "unsupported combination", "request_deadline"),
        ({"request_deadline": "2h"}, "unsupported combination", "request_deadline"),
        ({"timeouts": {"initialize": "29s"}}, "unsupported combination", "timeouts.initialize"),
        ({"timeouts": {"initialize": "31m"}}, "unsupported combination", "timeouts.initialize"),
        ({"timeouts": {"wake": "9s"}}, "unsupported combination", "timeouts.wake"),
        (
            {"request_deadline": "60s", "timeouts": {"wake": "61s"}},
            "unsupported combination",
            "timeouts.wake",
        ),
        ({"timeouts": {"stop": "9s"}}, "unknown field", "timeouts.stop"),
        # model
        ({"model": None}, "unsupported combination", "model"),
        ({"model": ""}, "unsupported combination", "model"),
        ({"model": "."}, "unsupported combination", "model"),
        ({"model": "~/x"}, "unsupported combination", "model"),
        ({"model": "a/../../x"}, "unsupported combination", "model"),
        ({"model": {}}, "missing required field", "model"),
        ({"model": {"path": "~"}}, "unsupported combination", "model.path"),
        ({"model": {"path": 3}}, "unsupported combination", "model.path"),
        ({"model": {"hf": "Qwen/Qwen3-4B"}}, "unsupported combination", "model.hf"),
        ({"model": {"hf": "Qwen/Qwen3-4B@main"}}, "unsupported combination", "model.hf"),
        ({"model": {"hf": "nothing"}}, "unsupported combination", "model.hf"),
        ({"model": {"hf": f"a--b/c@{COMMIT}"}}, "unsupported combination", "model.hf"),
        ({"model": {"hf": f"a/b@{COMMIT}", "path": "x"}}, "conflicting arguments", "model.hf"),
        (
            {"model": {"path": "x", "source": {"local": {"path": "y"}}}},
            "conflicting arguments",
            "model.source",
        ),
        ({"model": {"source": {}}}, "unsupported combination", "model.source"),
        ({"model": {"source": {"type": "ftp"}}}, "unsupported combination", "model.source"),
        ({"model": {"source": {"local": {}}}}, "missing required field", "model.source.local.path"),
        ({"model": {"source": {"type": "local"}}}, "missing required field", "model.source.path"),
        (
            {"model": {"source": {"huggingface": {"repo": "a/b", "revision": "main"}}}},
            "unsupported combination",
            "model.source.huggingface.revision",
        ),
        (
            {"model": {"source": {"huggingface": {"repo": "a--b/c", "revision": COMMIT}}}},
            "unsupported combination",
            "model.source",
        ),
        (
            {"model": {"source": {"http": {"url": "https://x/y", "sha256": "a" * 63}}}},
            "unsupported combination",
            "model.source.http.sha256",
        ),
        (
            {"model": {"source": {"http": {"url": "http://x/y", "sha256": "a" * 64}}}},
            "source denied by host policy",
            "model.source",
        ),
        (
            {"model": {"path": "x", "content_fingerprint": "sha256:abc"}},
            "unsupported combination",
            "model.content_fingerprint",
        ),
        ({"model": {"path": "x", "draft": "y"}}, "unsupported combination", "model.draft"),
        # engine settings
        ({"engine_config": {"port": 1}}, "unknown field", "engine_config.port"),
        (
            {"engine_config": {"memory": {"kv_cache": "4GB"}}},
            "invalid unit",
            "engine_config.memory.kv_cache",
        ),
        (
            {"engine_config": {"memory": {"kv_cache": "0B"}}},
            "unsupported combination",
            "engine_config.memory.kv_cache",
        ),
        (
            {"engine_config": {"memory": {"request": "4GiB", "kv_cache": "4GiB"}}},
            "unsupported combination",
            "engine_config.memory.kv_cache",
        ),
        (
            {"engine_config": {"memory": {"request": "4GiB", "startup": "3GiB"}}},
            "unsupported combination",
            "engine_config.memory.startup",
        ),
        (
            {"engine_config": {"memory": {"startup": "3GiB"}}, "resources": {"gpu": "9GiB"}},
            "conflicting arguments",
            "engine_config.memory.startup",
        ),
        ({"engine_config": {"sglang": {}}}, "unsupported combination", "engine_config.sglang"),
        (
            {"engine_config": {"extra_args": ["--x"]}},
            "conflicting arguments",
            "engine_config.extra_args",
        ),
        (
            {"engine_config": {"extra_args": ["--port", "1"], "accept_extra_args": True}},
            "conflicting arguments",
            "engine_config.extra_args",
        ),
        (
            {
                "engine_config": {
                    "dtype": "auto",
                    "extra_args": ["--dtype", "auto"],
                    "accept_extra_args": True,
                }
            },
            "conflicting arguments",
            "engine_config.extra_args",
        ),
        (
            {"engine_config": {"env": {"HOME": "x"}}},
            "unsupported combination",
            "engine_config.env",
        ),
        (
            {"engine": "sglang", "engine_config": {"trust_remote_code": True}},
            "unsupported combination",
            "engine_config.trust_remote_code",
        ),
        (
            {"engine": "llamacpp", "engine_config": {"dtype": "auto"}},
            "unsupported combination",
            "engine_config.dtype",
        ),
        (
            {"engine": "llamacpp", "engine_config": {"language_model_only": True}},
            "unsupported combination",
            "engine_config.language_model_only",
        ),
        (
            {"engine": "llamacpp", "engine_config": {"kv_cache_dtype": "fp8"}},
            "unsupported combination",
            "engine_config.kv_cache_dtype",
        ),
        (
            {"engine": "llamacpp", "engine_config": {"llamacpp": {"n_gpu_layers": "most"}}},
            "unsupported combination",
            "engine_config.llamacpp.n_gpu_layers",
        ),
        (
            {"engine": "llamacpp", "engine_config": {"llamacpp": {"gguf_file": "../a.gguf"}}},
            "unsupported combination",
            "engine_config.llamacpp.gguf_file",
        ),
        ({"engine": "llamacpp", "name": "a,b"}, "unsupported combination", "name"),
        ({"engine": "llamacpp", "routes": ["a b"]}, "unsupported combination", "routes[0]"),
        (TENSORFOLD, "missing required field", "resources"),
        (
            {"engine": "tensorfold", "resources": {"gpu": "9GiB"}},
            "missing required field",
            "engine_config.context_length",
        ),
        (
            {"engine": "tensorfold", "engine_config": {"memory": {"request": "1GiB"}}},
            "unsupported combination",
            "engine_config.memory.request",
        ),
        # resources
        ({"resources": {"gpu": "9GiB", "cpu": 1}}, "unknown field", "resources.cpu"),
        ({"resources": {"gpu": 9}}, "invalid unit", "resources.gpu"),
        ({"resources": {}}, "missing required field", "resources.cold"),
        (
            {"resources": {**LONG, "wake": {"allocations": [{"domain": "gpu0"}]}}},
            "missing required field",
            "resources.wake.allocations[0].bytes",
        ),
        # what an engine's models cannot be for
        (
            {
                "engine": "tensorfold",
                "resources": {"gpu": "9GiB"},
                "engine_config": {"context_length": 1, "task": "embed"},
            },
            "unsupported combination",
            "engine_config.task",
        ),
        (
            {"engine": "llamacpp", "engine_config": {"task": "transcribe"}},
            "unsupported combination",
            "engine_config.task",
        ),
        (
            {"engine": "old-llama", "engine_config": {"llamacpp": {"pooling": "mean"}}},
            "unsupported combination",
            "engine_config.llamacpp.pooling",
        ),
        # an engine whose profile opted out of parking
        ({"engine": "sglang", "residency": "deep"}, "unsupported combination", "residency"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(changes, kind, path):
    refused = refusal({**MINIMAL, **changes})

    assert refused.code == "invalid_config"
    assert refused.details == {"path": path}
    assert refused.message.startswith(f"Invalid deployment configuration: {kind} at `{path}`: ")


SPECULATIVE = '{"method":"draft_model","num_speculative_tokens":3}'


def drafting(engine, *extra, draft="small", **document):
    return {
        **MINIMAL,
        "engine": engine,
        "model": {"path": "m", "draft": draft},
        "engine_config": {"accept_extra_args": True, "extra_args": list(extra)},
        **document,
    }


@pytest.mark.parametrize(
    ("draft", "path"),
    [
        ("small", "/models/small"),
        ({"path": "/elsewhere/small"}, "/elsewhere/small"),
        ({"source": {"local": {"path": "small"}}}, "/models/small"),
    ],
)
def test_a_draft_is_a_folder_on_the_machine(draft, path):
    document = drafting("vllm", "--speculative-config", SPECULATIVE, draft=draft)

    assert complete(document).draft_path == path


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (drafting("vllm"), "--speculative-config"),
        (drafting("vllm", "--speculative-config", '{"method":"ngram"}'), "num_speculative_tokens"),
        (drafting("vllm", "--speculative-config", '{"method":"eagle"}'), "num_speculative_tokens"),
        (
            drafting("vllm", "--speculative-config", SPECULATIVE[:-1] + ',"model":"/x"}'),
            "name a draft model too",
        ),
        (drafting("quiet"), "--speculative-algorithm"),
        (drafting("quiet", "--speculative-algorithm", "NGRAM"), "--speculative-algorithm"),
        (
            drafting("quiet", "--speculative-algorithm=EAGLE", "--speculative-draft-model=/x"),
            "name a draft model too",
        ),
        (drafting("llamacpp"), "--model-draft"),
        (
            drafting(
                "tensorfold",
                "--no-drafts",
                resources={"gpu": "9GiB"},
                engine_config={
                    "context_length": 1,
                    "accept_extra_args": True,
                    "extra_args": ["--no-drafts"],
                },
            ),
            "--no-drafts",
        ),
        (
            drafting("vllm", "--speculative-config", SPECULATIVE, draft={"hf": "a/b@" + COMMIT}),
            "not fetched",
        ),
        (drafting("vllm", "--speculative-config", SPECULATIVE, draft={}), "state its path"),
    ],
)
def test_a_draft_that_would_not_be_used_is_refused(document, words):
    refused = refusal(document)

    assert refused.details == {"path": "model.draft"}
    assert words in refused.message


@pytest.mark.parametrize(
    ("stated", "task"),
    [({}, ModelTask.GENERATE), ({"task": "rerank"}, ModelTask.RERANK)],
)
def test_what_a_model_is_for(stated, task):
    assert complete({**MINIMAL, "engine_config": stated}).task is task


def test_a_missing_field_is_named():
    refused = refusal({"engine": "vllm", "model": "x"})

    assert refused.details == {"path": "name"}
    assert "missing required field" in refused.message


def test_the_unpinned_reference_is_the_one_value_that_is_shown():
    message = refusal({**MINIMAL, "model": {"hf": "Qwen/Qwen3-4B"}}).message

    assert message.startswith(
        "Invalid deployment configuration: unsupported combination at `model.hf`: "
        "`Qwen/Qwen3-4B` is not pinned to a commit: "
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"residency": "hunter2"},
        {"request_deadline": "hunter2"},
        {"model": {"hf": "hunter2"}},
        {"name": "hunter2\n"},
        {"engine_config": {"memory": {"request": "hunter2"}}},
        {"placement": {"selector": {"a": ["hunter2"]}}},
        {"model": {"source": {"http": {"url": "https://u:hunter2@x", "sha256": "hunter2"}}}},
    ],
)
def test_values_are_never_shown(changes):
    assert "hunter2" not in refusal({**MINIMAL, **changes}).message


# Refusals that are not of one field's shape


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"host": "other"}, "host_ineligible", "box"),
        ({"placement": {"hosts": ["a", "b"]}}, "host_ineligible", "box"),
        ({"placement": {"selector": {"zone": "b"}}}, "host_policy_denied", "placement.selector"),
        (
            {"devices": [{"id": "gpu0"}, {"id": "gpu1"}]},
            "unsupported_capability",
            "multi_gpu_unsupported",
        ),
        (
            {"resources": with_devices("gpu0", "gpu1")},
            "unsupported_capability",
            "multi_gpu_unsupported",
        ),
        (
            {"engine": "llamacpp", "residency": "deep"},
            "unsupported_capability",
            "capability_missing",
        ),
        (
            {
                "engine": "tensorfold",
                "engine_config": {"context_length": 1},
                "resources": {"gpu": "9GiB"},
                "residency": "host_backed",
            },
            "unsupported_capability",
            "capability_missing",
        ),
    ],
)
def test_other_refusals(changes, code, words):
    refused = refusal({**MINIMAL, **changes})

    assert refused.code == code
    assert words in refused.message


def test_a_source_that_the_host_turned_off_is_denied():
    policy = attrs.evolve(DEFAULTS, sources=SourcePolicy(huggingface=False))
    document = {
        **MINIMAL,
        "model": {"source": {"type": "huggingface", "repo": "a/b", "revision": COMMIT}},
    }

    refused = refusal(document, defaults=policy)

    assert refused.details == {"path": "model.source"}
    assert "source denied by host policy" in refused.message


def test_without_a_host_a_document_is_completed_as_far_as_it_goes():
    text = complete_offline({**MINIMAL, "engine": "some-profile"})

    assert json.loads(text)["runtime_profile"] == "some-profile"
    with pytest.raises(Refused):
        complete_offline({**MINIMAL, "timeouts": {"wake": "1s"}, "request_deadline": "60s"})

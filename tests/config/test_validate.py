from __future__ import annotations

import json

import pytest

from capyctl.config.problems import InvalidDocument
from capyctl.config.validate import validate_file
from capyctl.domain.errors import Refused

DEPLOYMENT = "name: m\nengine: vllm\nmodel: m\n"
HOST = """
schema_version: 1
kind: host
name: gpu-box
state_dir: /var/lib/capyctl
ingress: {transport: mutual_tls, address: gpu-box:8444, bind: 0.0.0.0:8444}
runtime_profiles:
  vllm: {engine: vllm, executable: /v/bin/vllm}
resource_policy:
  domains:
    system: {memory: distinct, managed_limit: 96GiB, free_reserve: 12GiB, parked_limit: 16GiB}
    gpu0:
      {memory: device, device: gpu0, managed_limit: 22GiB, free_reserve: 2GiB, parked_limit: 6GiB}
  devices:
    gpu0: {domain: gpu0, sharing: shared}
  labels: {zone: a}
"""
SERVER = """
schema_version: 1
kind: server
enrollment: {bootstrap_address: "https://s:7444", control_address: "https://s:7445"}
"""
ENGINES = "schema_version: 1\nkind: engines\nruntime_profiles: {}\n"
STANDALONE = "schema_version: 1\nkind: standalone\n"


def validate(tmp_path, text, **changes):
    path = tmp_path / "d.yaml"
    path.write_text(text)
    return validate_file(path, **changes)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (DEPLOYMENT, "deployment"),
        (HOST, "host"),
        (SERVER, "server"),
        (ENGINES, "engines"),
        (STANDALONE, "standalone"),
    ],
)
def test_every_kind_is_known(tmp_path, text, kind):
    found = validate(tmp_path, text)

    assert found.kind == kind
    assert found.summary == f"This is a valid {kind} document."
    assert json.loads(found.text)["kind"] == kind
    assert bool(found.needs_host) is (kind == "deployment")


def test_a_deployment_comes_back_completed(tmp_path):
    found = validate(tmp_path, DEPLOYMENT)

    assert json.loads(found.text)["routes"] == ["m"]


def test_overrides_are_laid_over_a_role_document(tmp_path):
    found = validate(tmp_path, STANDALONE, sets=["host.name=box"])

    assert json.loads(found.text)["host"] == {"name": "box"}


@pytest.mark.parametrize(
    ("text", "changes", "path"),
    [
        ("kind: group\n", {}, "kind"),
        ("kind: [host]\n", {}, "kind"),
        (DEPLOYMENT, {"sets": ["name=x"]}, "document"),
        (HOST.replace("name: gpu-box", ""), {}, "name"),
        (HOST + "surprise: 1\n", {}, "surprise"),
        (HOST.replace("22GiB", "22GB"), {}, "resource_policy.domains.gpu0.managed_limit"),
        (HOST + "local_engine: {vllm: /v, kv_cache: 1GiB}\n", {}, "local_engine.kv_cache"),
        (SERVER.replace("https://s:7444", "http://s"), {}, "enrollment.bootstrap_address"),
        (STANDALONE, {"sets": ["host.nam=x"]}, "host.nam"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, changes, path):
    with pytest.raises(InvalidDocument) as refused:
        validate(tmp_path, text, **changes)

    assert refused.value.problem.path == path


def test_a_reference_that_is_not_pinned_is_refused_without_asking_anyone(tmp_path):
    with pytest.raises(Refused, match="not pinned"):
        validate(tmp_path, "name: m\nengine: vllm\nmodel: {hf: a/b}\n")

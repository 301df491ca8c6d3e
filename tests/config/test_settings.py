"""Standalone settings: defaults, precedence, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from capyctl.config.check import check
from capyctl.config.named_settings import STANDALONE_SETTINGS
from capyctl.config.overrides import setting_paths
from capyctl.config.problems import InvalidDocument
from capyctl.config.role_document import (
    default_at,
    find_engines_path,
    find_state_root,
    generate_document,
)
from capyctl.config.role_settings import Address, MemoryAmount
from capyctl.config.settings import STANDALONE, load_standalone
from capyctl.config.standalone import StandaloneDocument
from capyctl.domain.units import GIB, MIB

HOME = {"HOME": "/home/me"}
MANAGEMENT = "server.listeners.management.bind"
HEAD = "schema_version: 1\nkind: standalone\n"


def load(tmp_path: Path, text="", *, flags=None, env=None, sets=()):
    path = tmp_path / "mine.yaml"
    path.write_text(HEAD + text)
    return load_standalone(
        tmp_path / "state",
        config_path=path,
        flags=flags or {},
        env={**HOME, **(env or {})},
        sets=sets,
    )


def refusal(tmp_path, text="", **overrides) -> InvalidDocument:
    with pytest.raises(InvalidDocument) as refused:
        load(tmp_path, text, **overrides)
    return refused.value


def shown(settings, path):
    return next((s.value, s.source) for s in settings.settings if s.path == path)


def test_defaults(tmp_path):
    found = load_standalone(tmp_path, config_path=None, flags={}, env=HOME)

    assert found.inference == Address(host="0.0.0.0", port=8443)
    assert found.inference_key_required
    assert found.management == Address(host="127.0.0.1", port=7443)
    assert found.models_root == "/home/me/models"
    assert found.engine_ports == (8100, 8199)
    assert found.queue.running_per_deployment_max == 32
    assert found.queue.pending_per_deployment_max == 64
    assert found.queue.pending_total_max == 256
    assert found.queue.buffered_bytes_max == 64 * MIB
    assert found.queue.admission_window_s == 2
    assert found.queue.request_deadline_s == 1800
    assert found.queue.stream_idle_s == 120
    assert (found.switching_drain_s, found.shutdown_drain_s) == (30, 30)
    assert found.ready_idle_s is None
    assert found.parked_idle_s is None
    assert found.memory.managed_limit is None
    assert not found.timing_header
    assert found.allowed_origins == ()
    assert not found.request_metrics
    assert found.profiles == ()
    assert found.host
    assert found.defaults.request_deadline_s == 1800
    assert list(tmp_path.iterdir()) == []


def test_a_document_is_generated_owner_only_and_once(tmp_path):
    path = generate_document(STANDALONE, tmp_path)

    assert path == tmp_path / "config" / "standalone.yaml"
    assert path.stat().st_mode & 0o777 == 0o600
    found = load_standalone(tmp_path, config_path=None, flags={}, env=HOME)
    assert shown(found, "kind") == ("standalone", "yaml")
    path.write_text(HEAD + "host: {name: box}\n")
    generate_document(STANDALONE, tmp_path)
    found = load_standalone(tmp_path, config_path=None, flags={}, env=HOME)
    assert found.host == "box"


def test_everything_that_a_document_states(tmp_path):
    found = load(
        tmp_path,
        """
server:
  name: front
  listeners:
    management: {bind: "[::1]:7000"}
    inference: {bind: 127.0.0.1:9000, authentication: none}
  switching: {drain_timeout: 5s}
  lifecycle_defaults: {ready_idle_timeout: 10m, parked_idle_timeout: 1h}
  observability: {timing_header: true, request_metrics: true}
  groups: {stall_timeout: 60s}
host:
  name: box
  connection: embedded
  model_store: {path: /data/models}
  model_sources: {huggingface: disabled, plain_http: allowed}
  checkpoints: {trust_declared_digest: true}
  local_engine: {llamacpp: /opt/llama-server, args: [--threads, "4"], kv_cache: 2GiB}
  lifecycle: {activation: explicit}
  runtime_profiles: {}
  resource_policy:
    allowed_devices: auto
    memory:
      accounting: auto
      system: {managed_limit: 60%, free_reserve: 8GiB, parked_limit: 0B}
    parked_growth_limit: 50%
    endpoint_port_range: {start: 9100, end: 9101}
    queue: {max_pending_per_deployment: 0, request_deadline: 60s, admission_window: 1ms}
shutdown: {drain_timeout: 0s}
""",
    )

    assert found.management == Address(host="::1", port=7000)
    assert not found.inference_key_required
    assert found.switching_drain_s == 5
    assert (found.ready_idle_s, found.parked_idle_s) == (600, 3600)
    assert found.timing_header
    assert found.request_metrics
    assert found.stall_s == 60
    assert found.host == "box"
    assert found.models_root == "/data/models"
    assert (found.sources.huggingface, found.sources.http) == (False, True)
    assert found.sources.plain_http
    assert found.trust_declared_digest
    assert found.explicit
    assert found.memory.managed_limit == MemoryAmount(percent=60)
    assert found.memory.managed_limit.of(100 * GIB) == 60 * GIB
    assert found.memory.free_reserve == MemoryAmount(size_bytes=8 * GIB)
    assert found.memory.parked_limit.of(GIB) == 0
    assert found.parked_growth_limit == "50%"
    assert found.engine_ports == (9100, 9101)
    assert found.queue.pending_per_deployment_max == 0
    assert found.shutdown_drain_s == 0
    assert found.kv_default_bytes == 2 * GIB
    (local,) = found.profiles
    assert (local.name, local.family, local.args) == ("local", "llamacpp", ("--threads", "4"))
    assert local.source == "document"


def test_several_local_engines_have_their_family_in_their_name(tmp_path):
    found = load(tmp_path, "host: {local_engine: {vllm: /a/vllm, llamacpp: /b/llama-server}}")

    assert [profile.name for profile in found.profiles] == ["local-vllm", "local-llamacpp"]
    assert [profile.deep_park for profile in found.profiles] == [True, False]


def test_engines_are_read_beside_an_explicit_document(tmp_path):
    (tmp_path / "engines.yaml").write_text(
        "# capyctl-document-revision: 2\nkind: engines\nschema_version: 1\n"
        "runtime_profiles:\n  mine: {engine: vllm, executable: /v/bin/vllm}\n"
    )

    assert [profile.name for profile in load(tmp_path).profiles] == ["mine"]


# Precedence

BIND = "server.listeners.inference.bind"
VARIABLE = "CAPYCTL_SET__SERVER__LISTENERS__INFERENCE__BIND"


@pytest.mark.parametrize(
    ("overrides", "port", "source"),
    [
        ({}, 1, "yaml"),
        ({"env": {"CAPYCTL_INFERENCE_ADDR": "127.0.0.1:2"}}, 2, "env"),
        ({"env": {"CAPYCTL_INFERENCE_ADDR": ""}}, 1, "yaml"),
        (
            {"flags": {"--listen": "127.0.0.1:3"}, "env": {"CAPYCTL_INFERENCE_ADDR": "[::1]:2"}},
            3,
            "flag",
        ),
        ({"env": {VARIABLE: "127.0.0.1:4"}}, 4, "env"),
        (
            {"env": {VARIABLE.lower().replace("capyctl_set", "CAPYCTL_SET"): "127.0.0.1:4"}},
            4,
            "env",
        ),
        ({"env": {VARIABLE: "127.0.0.1:4"}, "sets": [f"{BIND}=127.0.0.1:5"]}, 5, "set"),
        ({"flags": {"--listen": "127.0.0.1:5"}, "sets": [f"{BIND}=127.0.0.1:5"]}, 5, "set"),
    ],
)
def test_the_nearer_source_wins(tmp_path, overrides, port, source):
    text = "server: {listeners: {inference: {bind: 127.0.0.1:1}}}\n"

    found = load(tmp_path, text, **overrides)

    assert found.inference.port == port
    assert shown(found, BIND) == (f"127.0.0.1:{port}", source)


@pytest.mark.parametrize(
    ("overrides", "origins"),
    [
        (
            {"flags": {"--listen": "127.0.0.1:3"}, "sets": [f"{BIND}=127.0.0.1:5"]},
            ("--set", "--listen"),
        ),
        (
            {"env": {VARIABLE: "127.0.0.1:4", "CAPYCTL_INFERENCE_ADDR": "127.0.0.1:2"}},
            (VARIABLE, "CAPYCTL_INFERENCE_ADDR"),
        ),
    ],
)
def test_a_path_and_a_name_for_one_setting_must_agree(tmp_path, overrides, origins):
    refused = refusal(tmp_path, **overrides)

    assert refused.problem.path == BIND
    assert all(origin in str(refused) for origin in origins)
    assert "127.0.0.1" not in str(refused)


def test_a_number_by_path_agrees_with_the_same_number_by_name(tmp_path):
    found = load(
        tmp_path,
        flags={"--engine-ports": "9000-9001"},
        sets=["host.resource_policy.endpoint_port_range.start=9000"],
    )

    assert found.engine_ports == (9000, 9001)


VALUES = {
    "--listen": "127.0.0.1:9",
    "--no-inference-auth": "true",
    "--management-listen": "127.0.0.2:9",
    "--models-root": "/m",
    "--model-sources": "disabled",
    "--model-sources-max": "1GiB",
    "--model-sources-path": "/s",
    "--model-sources-plain-http": "allowed",
    "--hf-endpoint": "https://mirror",
    "--trust-declared-digest": "true",
    "--vllm-bin": "/v",
    "--sglang-bin": "/s",
    "--tensorfold-bin": "/t",
    "--llamacpp-bin": "/l",
    "--engine-fingerprint": "f",
    "--engine-args": "--a 1",
    "--kv-cache": "1GiB",
    "--deep-park": "off",
    "--trust-remote-code": "1",
    "--installation-drift": "refuse",
    "--cuda-home": "/c",
    "--engine-ports": "2000-2001",
    "--peer-address": "10.0.0.1",
    "--rendezvous-ports": "3000-3001",
    "--require-rdma": "true",
    "--group-stall-timeout": "9s",
}


@pytest.mark.parametrize("named", STANDALONE_SETTINGS, ids=lambda n: n.flag or n.variables[0])
def test_every_named_setting_reaches_its_paths(tmp_path, named):
    flag = named.flag or "--no-inference-auth"
    value = VALUES.get(flag, "") if named.flag else "none"
    if flag == "--runtime-dir":  # There is only one that may be stated.
        value = str(tmp_path / "state" / "runtime")

    by = [("flag", {"flags": {named.flag: value}})] if named.flag else []
    by += [("env", {"env": {name: value}}) for name in named.variables]

    assert set(named.paths) <= set(setting_paths(StandaloneDocument))
    for source, overrides in by:
        found = load(tmp_path, **overrides)
        for path in named.paths:
            assert shown(found, path)[1] == source
            assert shown(found, path)[0] != default_at(StandaloneDocument, path)


def test_a_variable_of_ours_comes_before_that_of_others(tmp_path):
    env = {"CAPYCTL_HF_ENDPOINT": "https://a", "HF_ENDPOINT": "https://b"}

    found = load(tmp_path, env=env)

    assert shown(found, "host.model_sources.huggingface_endpoint") == ("https://a", "env")


# Refusals


@pytest.mark.parametrize(
    ("overrides", "path", "words"),
    [
        ({"env": {"CAPYCTL_DEEP_PARK": ""}}, "host.local_engine.deep_park", "CAPYCTL_DEEP_PARK"),
        (
            {"env": {"CAPYCTL_ENGINE_PORTS": ""}},
            "host.resource_policy.endpoint_port_range.start",
            "is empty",
        ),
        (
            {"flags": {"--engine-ports": "9"}},
            "host.resource_policy.endpoint_port_range.start",
            "--engine-ports",
        ),
        (
            {"env": {"CAPYCTL_TRUST_REMOTE_CODE": "maybe"}},
            "host.local_engine.trust_remote_code",
            "CAPYCTL_TRUST_REMOTE_CODE",
        ),
        (
            {"sets": ["server.listners.inference.bind=1"]},
            "server.listners.inference.bind",
            "nearest: server.listeners.inference.bind",
        ),
        ({"sets": ["server.observability=1"]}, "server.observability", "request_metrics"),
        ({"sets": ["server.name"]}, "server.name", "<path>=<value>"),
        ({"sets": ["server.name=[a"]}, "server.name", "YAML"),
        ({"sets": ["server.name=a", "server.name=b"]}, "server.name", "twice"),
        (
            {"sets": ["host.model_sources.huggingface_token_file=/t"]},
            "host.model_sources.huggingface_token_file",
            "not with --set",
        ),
        ({"env": {"CAPYCTL_SET__SERVER__NOPE": "1"}}, "server.nope", "no such setting"),
    ],
)
def test_unreadable_overrides_name_their_source(tmp_path, overrides, path, words):
    refused = refusal(tmp_path, **overrides)

    assert refused.problem.path == path
    assert words in str(refused)


@pytest.mark.parametrize(
    ("overrides", "path", "origin"),
    [
        ({"flags": {"--management-listen": "0.0.0.0:7443"}}, MANAGEMENT, "--management-listen"),
        ({"env": {"CAPYCTL_MANAGEMENT_ADDR": "[::]:7443"}}, MANAGEMENT, "CAPYCTL_MANAGEMENT_ADDR"),
        ({"env": {"CAPYCTL_MANAGEMENT_ADDR": "7443"}}, MANAGEMENT, "CAPYCTL_MANAGEMENT_ADDR"),
        ({"sets": [f"{MANAGEMENT}=10.0.0.1:1"]}, MANAGEMENT, "--set"),
        (
            {"env": {"CAPYCTL_SET__SHUTDOWN__DRAIN_TIMEOUT": "601s"}},
            "shutdown.drain_timeout",
            "CAPYCTL_SET__SHUTDOWN__DRAIN_TIMEOUT",
        ),
        ({"flags": {"--kv-cache": "much"}}, "host.local_engine.kv_cache", "--kv-cache"),
        (
            {"sets": ["server.listeners.inference.allowed_origins=[me]"]},
            "server.listeners.inference.allowed_origins",
            "--set",
        ),
        (
            {"flags": {"--engine-ports": "9000-8999"}},
            "host.resource_policy.endpoint_port_range",
            "--engine-ports",
        ),
    ],
)
def test_overrides_out_of_bounds_name_their_source(tmp_path, overrides, path, origin):
    refused = refusal(tmp_path, **overrides)

    assert refused.problem.path == path
    assert refused.problem.detail.startswith(f"{origin}: ")


def test_what_the_document_states_wrongly_is_blamed_on_no_flag(tmp_path):
    text = "shutdown: {drain_timeout: 601s}\n"

    refused = refusal(tmp_path, text, flags={"--management-listen": "127.0.0.1:1"})

    assert refused.problem.path == "shutdown.drain_timeout"
    assert ": " not in refused.problem.detail


def test_a_secret_may_come_by_variable(tmp_path):
    env = {"CAPYCTL_SET__HOST__MODEL_SOURCES__HUGGINGFACE_TOKEN_FILE": "/t"}

    assert load(tmp_path, env=env)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("kind: host", "kind"),
        ("tls: {}", "tls"),
        ("server: {tls: {}}", "server.tls"),
        (
            "server: {listeners: {management: {bind: 0.0.0.0:7443}}}",
            "server.listeners.management.bind",
        ),
        (
            "server: {listeners: {management: {bind: 192.168.1.2:7443}}}",
            "server.listeners.management.bind",
        ),
        (
            "server: {listeners: {inference: {bind: 0.0.0.0:0}}}",
            "server.listeners.inference.bind",
        ),
        (
            "server: {listeners: {inference: {bind: 224.0.0.1:80}}}",
            "server.listeners.inference.bind",
        ),
        (
            "server: {listeners: {inference: {bind: 1.1.1.1:99999}}}",
            "server.listeners.inference.bind",
        ),
        (
            "server: {listeners: {management: {authentication: none}}}",
            "server.listeners.management.authentication",
        ),
        ("server: {switching: {drain_timeout: 0s}}", "server.switching.drain_timeout"),
        ("server: {switching: {drain_timeout: 30}}", "server.switching.drain_timeout"),
        ("shutdown: {drain_timeout: 601s}", "shutdown.drain_timeout"),
        ("server: {groups: {stall_timeout: 2h}}", "server.groups.stall_timeout"),
        ("server: {state_dir: /elsewhere}", "server.state_dir"),
        ("host: {state_dir: /elsewhere}", "host.state_dir"),
        ("host: {connection: remote}", "host.connection"),
        ("host: {runtime_profiles: {a: {}}}", "host.runtime_profiles"),
        ("host: {model_store: {path: models}}", "host.model_store.path"),
        ("host: {local_engine: {vllm: vllm}}", "host.local_engine.vllm"),
        ("host: {local_engine: {sglang: /s, args: [--a]}}", "host.local_engine.args"),
        (
            "host: {model_sources: {huggingface_endpoint: 'http://hub.example'}}",
            "host.model_sources.huggingface_endpoint",
        ),
        (
            "host: {resource_policy: {memory: {system: {managed_limit: 101%}}}}",
            "host.resource_policy.memory.system.managed_limit",
        ),
        (
            "host: {resource_policy: {memory: {system: {managed_limit: 50}}}}",
            "host.resource_policy.memory.system.managed_limit",
        ),
        (
            "host: {resource_policy: {parked_growth_limit: 10001%}}",
            "host.resource_policy.parked_growth_limit",
        ),
        (
            "host: {resource_policy: {endpoint_port_range: {start: 9, end: 10}}}",
            "host.resource_policy.endpoint_port_range.start",
        ),
        (
            "host: {resource_policy: {endpoint_port_range: {start: 9000, end: 8999}}}",
            "host.resource_policy.endpoint_port_range",
        ),
        (
            "host: {resource_policy: {queue: {max_pending_per_deployment: 4097}}}",
            "host.resource_policy.queue.max_pending_per_deployment",
        ),
        (
            "host: {resource_policy: {queue: {admission_window: 31s}}}",
            "host.resource_policy.queue.admission_window",
        ),
        (
            "host: {resource_policy: {queue: {request_deadline: 2h}}}",
            "host.resource_policy.queue.request_deadline",
        ),
    ],
)
def test_settings_out_of_bounds_are_refused(tmp_path, text, path):
    head, _, rest = text.partition(":")
    body = f"{head}:{rest}\n"
    if head == "kind":
        with pytest.raises(InvalidDocument) as refused:
            check(StandaloneDocument, {"schema_version": 1, "kind": "host"}, what="standalone")
        assert refused.value.problem.path == path
        return
    assert refusal(tmp_path, body).problem.path == path


def test_an_explicit_document_must_be_there(tmp_path):
    with pytest.raises(InvalidDocument, match="No such file"):
        load_standalone(tmp_path, config_path=tmp_path / "no.yaml", flags={}, env=HOME)
    assert list(tmp_path.iterdir()) == []


# Where things are


@pytest.mark.parametrize(
    ("flags", "env", "text", "root"),
    [
        ({}, {}, None, "/home/me/.local/state/capyctl"),
        ({}, {"XDG_STATE_HOME": "/x"}, None, "/x/capyctl"),
        ({}, {"XDG_STATE_HOME": "/x"}, "state_dir: /doc", "/doc"),
        ({}, {"CAPYCTL_STATE_DIR": "/env"}, "state_dir: /doc", "/env"),
        ({"--state-dir": "/flag"}, {"CAPYCTL_STATE_DIR": "/env"}, "state_dir: /doc", "/flag"),
        ({"--state-dir": "~/s"}, {}, None, "/home/me/s"),
    ],
)
def test_the_state_root(tmp_path, flags, env, text, root):
    path = None
    if text is not None:
        path = tmp_path / "d.yaml"
        path.write_text(HEAD + text)

    assert find_state_root(flags, {**HOME, **env}, path) == Path(root)


def test_a_relative_state_root_is_refused():
    with pytest.raises(InvalidDocument, match="state_dir"):
        find_state_root({"--state-dir": "here"}, HOME, None)


def test_where_engines_are_registered():
    assert find_engines_path(HOME, None) == Path("/home/me/.config/capyctl/engines.yaml")
    assert find_engines_path({"XDG_CONFIG_HOME": "/c"}, None) == Path("/c/capyctl/engines.yaml")
    assert find_engines_path(HOME, Path("/etc/capyctl/s.yaml")) == Path("/etc/capyctl/engines.yaml")


@pytest.mark.parametrize("origins", ["['*']", "[https://chat.example.org, 'http://[::1]:3000']"])
def test_origins_of_pages(tmp_path, origins):
    text = f"server:\n  listeners: {{inference: {{allowed_origins: {origins}}}}}\n"
    assert len(load(tmp_path, text).allowed_origins) == (1 if "*" in origins else 2)


@pytest.mark.parametrize(
    "origins", ["[chat.example.org]", "['*', https://a.example]", "[https://a.example/]", "[null]"]
)
def test_what_is_no_origin(tmp_path, origins):
    text = f"server:\n  listeners: {{inference: {{allowed_origins: {origins}}}}}\n"
    assert "allowed_origins" in str(refusal(tmp_path, text))

"""Documents of hosts and servers: defaults, bounds, and what is refused in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from capyctl.config.host_settings import DomainPolicy, load_host
from capyctl.config.named_settings import HOST_SETTINGS, SERVER_SETTINGS
from capyctl.config.new_documents import new_host_document, new_server_document
from capyctl.config.overrides import setting_paths
from capyctl.config.problems import InvalidDocument
from capyctl.config.role_document import Given
from capyctl.config.role_settings import Address
from capyctl.config.server_settings import load_server
from capyctl.config.validate import validate_file
from capyctl.domain.units import GIB
from capyctl.simulated.document import parse_simulate
from capyctl.simulated.machine import SimulatedMachine

HOME = {"HOME": "/home/me"}
HOST = "schema_version: 1\nkind: host\nname: box\n"
PLACED = "ingress: {bind: '10.0.0.5:8444'}\n"
SERVER = "schema_version: 1\nkind: server\n"


def given(tmp_path: Path, text: str, *, env=None, **more) -> Given:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return Given(config_path=path, env={**HOME, **(env or {})}, **more)


def host(tmp_path, text=PLACED, **more):
    return load_host(tmp_path / "state", given(tmp_path, HOST + text, **more))


def server(tmp_path, text="", **more):
    return load_server(tmp_path / "state", given(tmp_path, SERVER + text, **more))


def refusal(load, tmp_path, text, **more) -> InvalidDocument:
    with pytest.raises(InvalidDocument) as refused:
        load(tmp_path, text, **more)
    return refused.value


def test_a_host_by_default(tmp_path):
    found = host(tmp_path)

    assert found.host == "box"
    assert found.models_root == "/home/me/models"
    assert found.queue.request_deadline_s == 600
    assert found.engine_ports == (8100, 8199)
    assert (found.ingress, found.ingress_bind) == (Address(host="10.0.0.5", port=8444),) * 2
    assert not found.ingress_plain
    assert found.report_s == 1
    assert found.domains == {}
    assert found.max_parked is None
    assert not found.explicit
    assert found.kv_default_bytes is None
    assert found.engines_path == tmp_path / "engines.yaml"


def test_what_a_host_states(tmp_path):
    found = host(
        tmp_path,
        """
ingress: {transport: trusted_private_link, address: "100.64.0.9:9000", bind: "100.64.0.9:9001"}
load_report_interval: 500ms
lifecycle: {activation: explicit}
runtime_profiles:
  mine: {engine: llamacpp, executable: /opt/llama-server}
resource_policy:
  labels: {zone: a}
  max_parked: 3
  queue: {max_running_per_deployment: 4}
  domains:
    system: {memory: distinct, managed_limit: 96GiB, free_reserve: 12GiB, parked_limit: 16GiB}
    gpu0:
      {memory: device, device: gpu0, managed_limit: 22GiB, free_reserve: 2GiB, parked_limit: 6GiB}
  devices: {gpu0: {domain: gpu0, physical_gpu_uuid: GPU-1}}
""",
    )

    assert found.ingress == Address(host="100.64.0.9", port=9000)
    assert found.ingress_bind.port == 9001
    assert found.ingress_plain
    assert found.report_s == 0.5
    assert found.explicit
    assert [profile.name for profile in found.profiles] == ["mine"]
    assert found.labels == {"zone": "a"}
    assert found.max_parked == 3
    assert found.queue.running_per_deployment_max == 4
    assert found.domains["gpu0"] == DomainPolicy(
        device="gpu0",
        managed_limit_bytes=22 * GIB,
        free_reserve_bytes=2 * GIB,
        parked_limit_bytes=6 * GIB,
    )
    assert found.gpu_uuids == {"gpu0": "GPU-1"}


DOMAINS = "resource_policy: {{domains: {{{}}}}}\n"
SYSTEM = "system: {memory: distinct, managed_limit: 9GiB, free_reserve: 1GiB, parked_limit: 1GiB}"
CARD = "{memory: device, device: %s, managed_limit: 9GiB, free_reserve: 1GiB, parked_limit: 1GiB}"
UNIFIED = "unified: {memory: unified, managed_limit: 9GiB, free_reserve: 1GiB, parked_limit: 1GiB}"


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("", "ingress.address", "state the address and port"),
        ("ingress: {address: nowhere}", "ingress.address", "<name or address>:<port>"),
        ("ingress: {address: 'a:0'}", "ingress.address", "<port>"),
        ("ingress: {bind: 'gpu-box:8444'}", "ingress.bind", "IP address"),
        (
            "ingress: {transport: trusted_private_link, bind: '8.8.8.8:8444'}",
            "ingress",
            "plain HTTP",
        ),
        (
            "ingress: {transport: trusted_private_link, bind: '0.0.0.0:1', address: '10.1.1.1:1'}",
            "ingress",
            "use mutual_tls",
        ),
        (
            "ingress: {transport: trusted_private_link, bind: '10.1.1.1:1', address: 'box:1'}",
            "ingress",
            "IP addresses",
        ),
        *(
            (
                f"ingress: {{transport: trusted_private_link, bind: '{bind}:1'}}",
                "ingress",
                "plain HTTP",
            )
            for bind in ("[::]", "[::ffff:0.0.0.0]", "0.0.0.1", "198.18.0.1", "100.128.0.1")
        ),
        (PLACED + "load_report_interval: 3s", "load_report_interval", "2"),
        (PLACED + "load_report_interval: 100ms", "load_report_interval", "0.2"),
        (PLACED + "shutdown: {drain_timeout: 601s}", "shutdown.drain_timeout", "at most 600 s"),
        (PLACED + "identity_dir: /elsewhere", "identity_dir", "in the state root"),
        (PLACED + "state_dir: /elsewhere", "state_dir", "in the state root"),
        (PLACED + "runtime_dir: /elsewhere", "runtime_dir", "in the state root"),
        (
            PLACED + "local_engine: {vllm: /v, kv_cache: 1GiB}",
            "local_engine.kv_cache",
            "standalone only",
        ),
        (PLACED + "lifecycle: {activation: 1}", "lifecycle.activation", "found a whole number"),
        (
            PLACED + "runtime_profiles: {local-x: {engine: vllm, executable: /v}}",
            "runtime_profiles",
            "local_engine",
        ),
        (
            PLACED + DOMAINS.format(f"{SYSTEM}, cards: {CARD % 'gpu0'}"),
            "resource_policy.domains.cards",
            "named unified, system or",
        ),
        (PLACED + DOMAINS.format(f"gpu0: {CARD % 'gpu0'}"), "resource_policy", "exactly one"),
        (
            PLACED + DOMAINS.format("system: {memory: distinct, managed_limit: 0B, "
            "free_reserve: 1GiB, parked_limit: 0B}"),
            "resource_policy.domains.system.managed_limit",
            "expected above 0 bytes",
        ),
        (
            PLACED + DOMAINS.format("system: {memory: distinct, managed_limit: 1GiB, "
            "free_reserve: 1GiB, parked_limit: 2GiB}"),
            "resource_policy.domains.system.parked_limit",
            "parked_limit is above",
        ),
        (
            PLACED
            + f"resource_policy: {{domains: {{{SYSTEM}}}, devices: {{gpu1: {{domain: gpu1}}}}}}",
            "resource_policy.devices.gpu1.domain",
            "not stated",
        ),
        (
            PLACED + "resource_policy: {device_sharing: exclusive}",
            "resource_policy.device_sharing",
            "'shared'",
        ),
        (
            PLACED + "resource_policy: {queue: {admission_window: 31s}}",
            "resource_policy.queue.admission_window",
            "30",
        ),
    ],
)  # fmt: skip
def test_what_a_host_may_not_state(tmp_path, text, path, words):
    refused = refusal(host, tmp_path, text)

    assert refused.problem.path == path
    assert words in str(refused)
    assert str(refused).startswith("Invalid host configuration: ")


def test_unified_memory_beside_cards_is_a_topology_of_its_own_code(tmp_path):
    refused = refusal(host, tmp_path, PLACED + DOMAINS.format(f"{UNIFIED}, gpu0: {CARD % 'gpu0'}"))

    assert refused.problem.code == "unsupported_gpu_topology"


@pytest.mark.parametrize(
    ("name", "fine"),
    [("gpu-box.lan", True), ("a" * 128, True), ("a" * 129, False), ("a b", False), ("-a", False)],
)
def test_the_name_of_a_host(tmp_path, name, fine):
    text = PLACED + f"# {name}\n"
    document = given(tmp_path, HOST.replace("name: box", f"name: '{name}'") + text)

    if fine:
        assert load_host(tmp_path / "state", document).host == name
    else:
        with pytest.raises(InvalidDocument, match="`name`"):
            load_host(tmp_path / "state", document)


def test_a_host_needs_a_document(tmp_path):
    with pytest.raises(InvalidDocument, match="capyctl init host"):
        load_host(tmp_path, Given(env=HOME))


def test_a_server_by_default(tmp_path):
    found = load_server(tmp_path, Given(env=HOME))

    assert found.inference == Address(host="0.0.0.0", port=8443)
    assert found.management == Address(host="127.0.0.1", port=7443)
    assert found.bootstrap == found.bootstrap_dialled == Address(host="127.0.0.1", port=7444)
    assert found.control == found.control_dialled == Address(host="127.0.0.1", port=7445)
    assert (found.suspend_s, found.lost_s) == (5, 30)
    assert found.inference_key_required
    assert found.name
    assert list(tmp_path.iterdir()) == []


def test_what_a_server_states(tmp_path):
    found = server(
        tmp_path,
        """
name: front
listeners: {bootstrap: {bind: '0.0.0.0:1'}, control: {bind: '[::]:2'}}
enrollment: {bootstrap_address: 'https://front.lan:7444', control_address: 'https://front.lan'}
control: {heartbeat_suspend_after: 2s, heartbeat_lost_after: 4s}
scheduler: {queue: {max_buffered_bytes_total: 1MiB}}
""",
    )

    assert found.name == "front"
    assert found.bootstrap_dialled == Address(host="front.lan", port=7444)
    assert found.control_dialled == Address(host="front.lan", port=443)
    assert (found.suspend_s, found.lost_s) == (2, 4)
    assert found.buffered_bytes_max == 1 << 20


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        (
            "listeners: {management: {bind: '10.0.0.1:7443'}}",
            "listeners.management.bind",
            "loopback",
        ),
        (
            "listeners: {bootstrap: {bind: '0.0.0.0:7444'}}",
            "enrollment.bootstrap_address",
            "state the address that hosts dial",
        ),
        (
            "listeners: {control: {bind: '127.0.0.1:7444'}}",
            "listeners.control.bind",
            "choose another port",
        ),
        (
            "enrollment: {bootstrap_address: 'https://a:1'}",
            "enrollment",
            "state bootstrap_address and control_address",
        ),
        (
            "enrollment: {bootstrap_address: 'https://a:1', control_address: 'https://b:1'}",
            "enrollment",
            "different machines",
        ),
        (
            "enrollment: {bootstrap_address: 'http://a:1', control_address: 'https://a:1'}",
            "enrollment.bootstrap_address",
            "https://",
        ),
        (
            "enrollment: {bootstrap_address: 'https://a:99999', control_address: 'https://a:1'}",
            "enrollment.bootstrap_address",
            "1 to 65535",
        ),
        (
            "enrollment: {bootstrap_address: 'https://a:1/x', control_address: 'https://a:1'}",
            "enrollment.bootstrap_address",
            "https://<name",
        ),
        (
            "control: {heartbeat_suspend_after: 30s}",
            "control",
            "must be longer",
        ),
        ("control: {heartbeat_suspend_after: 0s}", "control.heartbeat_suspend_after", "1"),
        ("identity_dir: /elsewhere", "identity_dir", "in the state root"),
        (
            "listeners: {control: {authentication: none}}",
            "listeners.control.authentication",
            "mutual_tls",
        ),
    ],
)
def test_what_a_server_may_not_state(tmp_path, text, path, words):
    refused = refusal(server, tmp_path, text)

    assert refused.problem.path == path
    assert words in str(refused)


# What is laid over


def shown(settings, path):
    return next((s.value, s.source) for s in settings.settings if s.path == path)


def test_names_inside_of_maps_have_paths(tmp_path):
    text = PLACED + "resource_policy: {labels: {zone: a}}\n"
    env = {"CAPYCTL_SET__RESOURCE_POLICY__LABELS__RACK": "seven"}

    found = host(tmp_path, text, env=env, sets=["resource_policy.labels.zone=b"])

    assert found.labels == {"zone": "b", "rack": "seven"}
    assert shown(found, "resource_policy.labels.zone") == ("b", "set")
    assert shown(found, "resource_policy.labels.rack") == ("seven", "env")


def test_a_domain_inside_of_the_map_has_paths_and_defaults(tmp_path):
    text = PLACED + DOMAINS.format(SYSTEM)

    found = host(tmp_path, text, sets=["resource_policy.domains.system.managed_limit=5GiB"])

    assert found.domains["system"].managed_limit_bytes == 5 * GIB
    assert shown(found, "resource_policy.domains.system.managed_limit") == ("5GiB", "set")
    assert shown(found, "resource_policy.domains.system.parked_limit") == ("1GiB", "yaml")
    assert shown(found, "resource_policy.domains.system.host_kv_limit") == (None, "default")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("resource_policy.domains.system", "managed_limit"),
        ("resource_policy.labels", "a block"),
        ("model_sources.huggingface_token_file", "not with --set"),
        ("runtime_profiles.a.env.B", "not with --set"),
        ("host.name", "no such setting"),
    ],
)
def test_what_cannot_be_set(tmp_path, path, words):
    refused = refusal(host, tmp_path, PLACED, sets=[f"{path}=1"])

    assert words in str(refused)


@pytest.mark.parametrize("named", HOST_SETTINGS, ids=lambda n: n.flag or n.variables[0])
def test_named_settings_of_a_host_have_paths(named):
    from capyctl.config.host_document import HostDocument

    assert set(named.paths) <= set(setting_paths(HostDocument))
    assert named.flag != "--kv-cache"


def test_flags_of_a_server_reach_it(tmp_path):
    flags = {"--listen": "127.0.0.1:9", "--management-listen": "127.0.0.1:8"}

    found = server(tmp_path, flags=flags)

    assert (found.inference.port, found.management.port) == (9, 8)
    assert {one.flag for one in SERVER_SETTINGS} >= set(flags)


# New documents


@pytest.mark.parametrize("machine", ["gpus=2,memory=24GiB,ram=64GiB", "unified=128GiB", "gpus=0"])
def test_a_new_host_document_is_valid_as_it_is(tmp_path, machine):
    shape = SimulatedMachine(parse_simulate(machine), tmp_path / "usage").shape()
    state = tmp_path / "state"
    path = tmp_path / "host.yaml"
    path.write_text(new_host_document(state, name="box", shape=shape, sets=()))

    assert validate_file(path).kind == "host"
    found = load_host(state, Given(env=HOME, config_path=path))
    for domain in shape.domains:
        policy = found.domains[domain.name]
        assert policy.managed_limit_bytes + policy.free_reserve_bytes <= domain.total_bytes
        assert domain.managed_limit_bytes - policy.managed_limit_bytes < 1 << 20


def test_a_new_server_document_is_valid_as_it_is(tmp_path):
    path = tmp_path / "server.yaml"
    state = tmp_path / "state"
    path.write_text(new_server_document(state, ["listeners.inference.bind=127.0.0.1:9"]))

    assert validate_file(path).kind == "server"
    found = load_server(state, Given(env=HOME, config_path=path))
    assert found.inference == Address(host="127.0.0.1", port=9)

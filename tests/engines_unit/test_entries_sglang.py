"""The entry that runs inside SGLang: reserved settings held fast, keys off the command line."""

import grp
import json
import os

import pytest

from capyctl.engines.entries import sglang_entry
from capyctl.engines.sglang_options import SGLANG_OPTIONS
from tests.engines_unit.fake_engines import fake_sglang

pytestmark = pytest.mark.slow

KEYS = {"CAPYCTL_ENGINE_API_KEY": "inference-key", "CAPYCTL_SGLANG_ADMIN_KEY": "admin-key"}
OURS = ("--model-path", "/models/m", "--served-model-name", "m", "--host", "127.0.0.1")
OURS += ("--port", "8101", "--mem-fraction-static", "0.5")
COUNT = len(OURS)


@pytest.fixture
def sglang(tmp_path):
    return fake_sglang(tmp_path / "env")


def serve(environment, *theirs, ours=OURS, **variables):
    count = len(ours)
    ran = environment.run("sglang_entry.py", count, *ours, *theirs, **KEYS, **variables)
    assert ran.returncode == 0, ran.stderr
    first, last = ran.stdout.splitlines()
    assert last == "killed the children"
    return json.loads(first), ran.stderr


def refused(environment, *theirs, keys=KEYS, count=COUNT):
    ran = environment.run("sglang_entry.py", count, *OURS, *theirs, **keys)
    assert ran.stdout == ""
    return ran.returncode, ran.stderr


def test_keys_come_from_the_environment_and_stay_off_the_command_line(sglang):
    told, _ = serve(sglang, "--page-size", "16")
    assert told["args"]["api_key"] == "inference-key"
    assert told["args"]["admin_api_key"] == "admin-key"
    assert (told["args"]["page_size"], told["args"]["port"]) == (16, 8101)
    assert told["argv"] == ["sglang", "serve", *OURS, "--page-size", "16"]
    assert not any(name.startswith("CAPYCTL_") for name in told["environ"])


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (("--host", "0.0.0.0"), "host"),
        (("--port=1",), "port"),
        (("--api-key", "mine"), "api_key"),
        (("--admin", "mine"), "admin_api_key"),
        (("--enable-memory-saver",), "enable_memory_saver"),
        (("--mem", "0.9"), "mem_fraction_static"),
    ],
)
def test_a_reserved_setting_that_changes_is_a_mismatch(sglang, theirs, named):
    code, told = refused(sglang, *theirs)
    assert code == sglang_entry.EXIT_MISMATCH
    assert told == f"capyctl: effective_args_mismatch: {named}\n"


def test_what_sglang_itself_resolves_otherwise_is_a_mismatch(sglang):
    path = sglang.site / "sglang/srt/server_args.py"
    path.write_text(
        path.read_text() + "\n\ndef resolve_once(self):\n    self.mem_fraction_static = 0.7\n"
        "ServerArgs.resolve_once = resolve_once\n"
    )
    code, told = refused(sglang)
    assert code == sglang_entry.EXIT_MISMATCH
    assert told == "capyctl: effective_args_mismatch: mem_fraction_static\n"


def test_what_is_left_to_sglang_it_may_resolve(sglang):
    path = sglang.site / "sglang/srt/server_args.py"
    path.write_text(
        path.read_text() + "\n\ndef resolve_once(self):\n    self.page_size = 64\n"
        "ServerArgs.resolve_once = resolve_once\n"
    )
    assert serve(sglang)[0]["args"]["page_size"] == 64


@pytest.mark.parametrize(
    "keys",
    [{}, KEYS | {"CAPYCTL_SGLANG_ADMIN_KEY": ""}, KEYS | {"CAPYCTL_ENGINE_API_KEY": "admin-key"}],
)
def test_without_two_different_keys_it_does_not_start(sglang, keys):
    code, told = refused(sglang, keys=keys)
    assert (code, "two different keys" in told) == (2, True)


def test_a_count_that_does_not_fit_is_refused(sglang):
    assert refused(sglang, count=COUNT + 1)[0] == 2


def test_what_the_parser_refuses_is_its_own_error(sglang):
    code, told = refused(sglang, "--nonsense")
    assert (code, "unrecognized arguments" in told) == (2, True)


def test_a_release_without_an_admin_key_is_not_served(sglang):
    path = sglang.site / "sglang/srt/server_args.py"
    path.write_text(path.read_text().replace("    admin_api_key: str = None\n", ""))
    code, told = refused(sglang)
    assert (code, "knows no admin_api_key" in told) == (1, True)


SAVES = (*OURS, "--enable-memory-saver")


@pytest.mark.parametrize(
    ("mode", "outcome"), [(0o644, None), (0o755, None), (0o646, "warned"), (0o666, "warned")]
)
def test_a_saver_that_others_may_write_is_told_of_and_used_all_the_same(sglang, mode, outcome):
    sglang.put("torch_memory_saver/__init__.py", "")
    library = sglang.site / "torch_memory_saver_hook_mode_preload.abi3.so"
    library.write_bytes(b"")
    library.chmod(mode)
    _, log = serve(sglang, ours=SAVES)
    told = f"capyctl_saver_library_permissions outcome={outcome} path={library}"
    assert (told in log) is (outcome is not None)
    assert "capyctl_saver_library_permissions" not in serve(sglang)[1]


def test_a_group_that_nobody_knows_is_told_of(tmp_path):
    library = tmp_path / "torch_memory_saver.so"
    library.touch(mode=0o664)
    library.chmod(0o664)
    known = {entry.gr_gid for entry in grp.getgrall()}
    stranger = next(gid for gid in range(50_000, 60_000) if gid not in known)
    try:
        os.chown(library, -1, stranger)
    except PermissionError:
        pytest.skip("only root may give files to an unknown group")
    assert sglang_entry.writable_by_others(library) == "group_undetermined"


def test_every_reserved_setting_of_the_second_check_is_reserved_at_the_first():
    options = {name.replace("-", "_") for name in SGLANG_OPTIONS.reserved}
    options |= {name.replace("-", "_") for name in SGLANG_OPTIONS.typed}
    assert set(sglang_entry.RESERVED.split()) <= options
    assert set(sglang_entry.RESOLVED.split()) <= set(sglang_entry.RESERVED.split())

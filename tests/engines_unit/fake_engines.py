"""Fake `vllm` and `sglang` packages in temporary environments: what the entries touch of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import attrs

from capyctl.engines import entries
from tests.engines_unit.installed import python_environment

ENTRIES = Path(entries.__file__).parent
KEYS = {"CAPYCTL_ENGINE_API_KEY": "inference-key"}
WITHIN_S = 30

PARSER = '''
import argparse, os

class FlexibleArgumentParser(argparse.ArgumentParser):
    """Takes underscores for dashes, as vLLM's does."""
    def parse_args(self, args=None, namespace=None):
        words = [w if not w.startswith("--") else w.replace("_", "-") for w in args]
        return super().parse_args(words, namespace)
'''

CLI_ARGS = """
def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--model", default="default/model")
    for name in ("host", "port", "api-key", "served-model-name", "uds", "max-num-seqs", "seed"):
        parser.add_argument("--" + name)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--enable-sleep-mode", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--middleware", action="append", default=[])
    return parser

def validate_parsed_serve_args(args):
    args.validated = True
"""

API_SERVER = """
import importlib, json, os, sys

async def run_server(args):
    told = {k: v for k, v in vars(args).items()}
    seen = []

    async def app(scope, receive, send):
        seen.append(scope.get("path", scope["type"]))
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    outermost = app
    for name in args.middleware:
        module, attribute = name.rsplit(".", 1)
        outermost = getattr(importlib.import_module(module), attribute)(outermost)
    answers = []
    for scope in json.loads(sys.stdin.read() or "[]"):
        sent = []
        async def send(message):
            sent.append({k: v for k, v in message.items() if not isinstance(v, (bytes, list))})
        scope["headers"] = [(n.encode(), v.encode()) for n, v in scope.get("headers", [])]
        await outermost(scope, None, send)
        answers.append(sent[0] if sent else None)
    environ = {k: v for k, v in os.environ.items()}
    print(json.dumps({"args": told, "answers": answers, "seen": seen, "environ": environ,
                      "argv": sys.argv, "path": sys.path, "isolated": sys.flags.isolated}))
"""

SERVER_ARGS = """
import argparse, dataclasses

@dataclasses.dataclass
class ServerArgs:
    model_path: str = ""
    served_model_name: str = None
    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str = None
    admin_api_key: str = None
    enable_memory_saver: bool = False
    enable_weights_cpu_backup: bool = False
    mem_fraction_static: float = None
    page_size: int = 1

    @staticmethod
    def add_cli_args(parser):
        for field in dataclasses.fields(ServerArgs):
            name = "--" + field.name.replace("_", "-")
            if field.type in (bool, "bool"):
                parser.add_argument(name, action="store_true")
            else:
                kind = {"int": int, int: int, "float": float, float: float}.get(field.type, str)
                parser.add_argument(name, type=kind, default=field.default)

def prepare_server_args(argv):
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return ServerArgs(**vars(parser.parse_args(argv)))
"""

LAUNCH_SERVER = """
import dataclasses, json, os, sys

def run_server(server_args):
    print(json.dumps({"args": dataclasses.asdict(server_args), "argv": sys.argv,
                      "environ": dict(os.environ)}), flush=True)
"""

UTILS = """
def kill_process_tree(pid, include_parent):
    print("killed the children, oneself" if include_parent else "killed the children", flush=True)
"""


@attrs.frozen
class FakeEnvironment:
    """A virtual environment whose engine is a fake."""

    root: Path

    @property
    def site(self) -> Path:
        (found,) = self.root.glob("lib/python3*/site-packages")
        return found

    def put(self, path: str, text: str) -> None:
        file = self.site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        for folder in file.relative_to(self.site).parents:
            if folder != Path() and not (self.site / folder / "__init__.py").exists():
                (self.site / folder / "__init__.py").write_text("")
        file.write_text(text)

    def run(self, entry: str, count, *arguments: str, requests=(), **variables: str):
        """Runs an entry as a launch does; its completed process."""
        return subprocess.run(
            [self.root / "bin/python3", "-I", ENTRIES / entry, str(count), *arguments],
            input=json.dumps(list(requests)),
            env=variables,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )


def fake_vllm(root: Path, *, older: bool = False, distribution: str = "vllm") -> FakeEnvironment:
    """``older``: the modules lie where they lay before 0.31."""
    made = FakeEnvironment(python_environment(root, **{distribution: "0.32.0"}))
    made.put("vllm/__init__.py", "")
    made.put("vllm/utils/argparse_utils.py", PARSER)
    where = "openai" if older else "launchers"
    made.put(f"vllm/entrypoints/{where}/cli_args.py", f"import argparse\n{CLI_ARGS}")
    made.put("vllm/entrypoints/openai/api_server.py", API_SERVER)
    return made


def fake_sglang(root: Path) -> FakeEnvironment:
    made = FakeEnvironment(python_environment(root, sglang="0.5.23"))
    made.put("sglang/srt/server_args.py", SERVER_ARGS)
    made.put("sglang/srt/utils.py", UTILS)
    made.put("sglang/launch_server.py", LAUNCH_SERVER)
    return made

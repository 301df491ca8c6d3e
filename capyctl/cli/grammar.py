"""The command's grammar: every action, resource, option and its help. Loads no command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import attrs

from capyctl.cli.failure import CommandFailed

DESCRIPTION = "Runs LLM inference engines on your GPUs: one endpoint, models parked and woken."
_COMMANDS = "capyctl.cli.commands"


@attrs.frozen
class Flag:
    """A flag of a role, with the words in its help."""

    name: str
    value: str | None
    help: str
    """``value`` is None for a switch."""
    choices: tuple[str, ...] | None = None


STANDALONE_FLAGS = (
    Flag("--listen", "ADDRESS", "where inference is served (0.0.0.0:8443)"),
    Flag("--no-inference-auth", None, "serve inference without an API key"),
    Flag("--management-listen", "ADDRESS", "where management is served (127.0.0.1:7443)"),
    Flag("--models-root", "DIR", "the models directory (~/models)"),
    Flag(
        "--model-sources", "POLICY", "whether models may be fetched at all", ("allowed", "disabled")
    ),
    Flag("--model-sources-max", "SIZE", "bound on all downloads together (500GiB)"),
    Flag("--model-sources-path", "DIR", "where downloads lie (the models directory)"),
    Flag(
        "--model-sources-plain-http", "POLICY", "whether http:// is fetched", ("allowed", "denied")
    ),
    Flag("--hf-endpoint", "URL", "the Hugging Face mirror to use"),
    Flag("--trust-declared-digest", "BOOL", "take a declared digest for measured (false)"),
    Flag("--vllm-bin", "PATH", "a vLLM executable to publish"),
    Flag("--sglang-bin", "PATH", "an SGLang interpreter to publish"),
    Flag("--tensorfold-bin", "PATH", "a TensorFold executable to publish"),
    Flag("--llamacpp-bin", "PATH", "a llama-server executable to publish"),
    Flag("--engine-fingerprint", "TEXT", "the build's name, instead of its version check"),
    Flag("--engine-args", "ARGS", 'arguments of every launch, as --engine-args="--a 1"'),
    Flag("--kv-cache", "SIZE", "KV cache of models on these executables that state none"),
    Flag("--deep-park", "ON", "whether these executables park", ("on", "off")),
    Flag("--trust-remote-code", "BOOL", "let models bring code of their own (false)"),
    Flag("--installation-drift", "POLICY", "on a changed installation", ("warn", "refuse")),
    Flag("--cuda-home", "DIR", "the CUDA toolkit of these executables"),
    Flag("--runtime-dir", "DIR", "a copy of the engine entry points that you maintain"),
    Flag("--engine-ports", "A-B", "loopback ports of engines (8100-8199)"),
    Flag("--peer-address", "ADDRESS", "this machine's address in groups"),
    Flag("--rendezvous-ports", "A-B", "ports where groups meet (25000-25099)"),
    Flag("--require-rdma", "BOOL", "refuse groups without RDMA (false)"),
    Flag("--group-stall-timeout", "TIME", "how long a group may make no progress (120s)"),
    Flag("--debug-engine-logs", None, "let engines log everything, prompts included"),
)


def destination(flag: str) -> str:
    """The attribute that an option's value gets."""
    return flag.lstrip("-").replace("-", "_")


class Parser(argparse.ArgumentParser):
    """Fails like every command: with a code, and in JSON where that was asked for."""

    def error(self, message: str) -> NoReturn:
        hint = f"`{self.prog} --help` shows what there is"
        raise CommandFailed("usage", f"{message}; {hint}")


class _Leaves:
    """Adds commands ``<action> <resource>`` below one parser."""

    def __init__(self, top: argparse._SubParsersAction[Parser]) -> None:
        self._top = top
        self._actions: dict[str, argparse._SubParsersAction[Parser]] = {}

    def add(self, words: str, run: str, help: str, *, output_format: bool = True) -> Parser:
        """A command; ``run`` names its function below `capyctl.cli.commands`."""
        action, _, resource = words.partition(" ")
        place, name = (self._below(action), resource) if resource else (self._top, action)
        leaf = place.add_parser(
            name,
            help=help,
            description=help[0].upper() + help[1:] + ".",
            allow_abbrev=False,
            argument_default=None,
        )
        _add_everywhere(leaf, output_format=output_format)
        leaf.set_defaults(run=f"{_COMMANDS}.{run}")
        return leaf

    def _below(self, action: str) -> argparse._SubParsersAction[Parser]:
        found = self._actions.get(action)
        if found is None:
            help = _ACTIONS[action]
            parser = self._top.add_parser(
                action, help=help, description=help[0].upper() + help[1:] + ".", allow_abbrev=False
            )
            found = parser.add_subparsers(metavar="RESOURCE", required=True, dest="resource")
            self._actions[action] = found
        return found


_ACTIONS = {
    "start": "start a role, a deployment or one instance",
    "stop": "stop a deployment or one instance",
    "park": "give a model's GPU memory up while its engine lives",
    "preinitialize": "start, check and park, so that the first request only wakes",
    "delete": "remove a deployment; its model files stay",
    "deploy": "send a deployment document",
    "list": "list what there is",
    "status": "show how things stand",
    "inspect": "show everything of one thing",
    "validate": "check a document offline",
    "config": "show settings and where they come from",
    "engine": "find, register and remove engines",
    "simulate": "make things for a simulated machine",
}


def build_parser() -> Parser:
    """The whole grammar."""
    parser = Parser(prog="capyctl", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="show the version and end")
    _add_everywhere(parser, output_format=True)
    actions = parser.add_subparsers(metavar="ACTION", dest="action")
    leaves = _Leaves(actions)
    _add_roles(leaves)
    _add_models(leaves)
    _add_instances(leaves)
    _add_status(leaves, actions)
    _add_documents(leaves)
    _add_engines(leaves)
    _add_simulated(leaves)
    return parser


def _add_everywhere(parser: Parser, *, output_format: bool) -> None:
    """Options that may stand before the action or after the resource."""
    group = parser.add_argument_group("common options")
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS}
    if output_format:
        group.add_argument(
            "--format",
            dest="output",
            choices=("text", "json"),
            help="how the result is shown (text)",
            **hidden,
        )
    group.add_argument("--json", action="store_true", help="short for --format json", **hidden)
    group.add_argument("--state-dir", metavar="DIR", help="the role's state directory", **hidden)
    group.add_argument("--config", metavar="FILE", help="the role's document", **hidden)


def _add_request_id(parser: Parser) -> None:
    parser.add_argument(
        "--request-id", metavar="ULID", help="recover an earlier run of this very command"
    )


def _add_roles(leaves: _Leaves) -> None:
    role = leaves.add("start standalone", "standalone:start", "run capyctl on this machine alone")
    role.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE", help="set one setting by path"
    )
    for flag in STANDALONE_FLAGS:
        if flag.value is None:
            role.add_argument(flag.name, action="store_true", default=None, help=flag.help)
        else:
            role.add_argument(flag.name, metavar=flag.value, choices=flag.choices, help=flag.help)
    role.add_argument(
        "--simulate",
        nargs="?",
        const="",
        metavar="MACHINE",
        help="run on a simulated machine: a document, or gpus=2,memory=80GiB,ram=512GiB",
    )


def _add_models(leaves: _Leaves) -> None:
    deploy = leaves.add("deploy model", "deploy:deploy", "create or replace a deployment")
    deploy.add_argument("--file", required=True, metavar="FILE", help="the deployment document")
    deploy.add_argument("--activate", action="store_true", help="start it as well")
    deploy.add_argument("--wait", action="store_true", help="wait until it serves")
    deploy.add_argument("--revision", type=_revision, metavar="N", help="replace this revision")
    _add_list(deploy, "--engine-env", "NAME=VALUE", "a variable of this model's engine")
    deploy.add_argument("--hf-endpoint", metavar="URL", help="the Hugging Face mirror to ask")
    _add_window(deploy)
    _add_request_id(deploy)
    start = _on_deployment(leaves, "start", "start a deployment, or wake it")
    start.add_argument("--wait", action="store_true", help="wait until every instance serves")
    start.add_argument("--evict", action="store_true", help="park or stop others to make room")
    _add_window(start)
    _on_deployment(leaves, "stop", "stop a deployment until it is started again")
    _on_deployment(leaves, "park", "park every instance that serves")
    _on_deployment(leaves, "preinitialize", "start, check and park every instance in turn")
    delete = _on_deployment(leaves, "delete", "delete a stopped deployment")
    delete.add_argument("--stop", action="store_true", help="stop it first, and wait for that")


def _on_deployment(leaves: _Leaves, action: str, help: str) -> Parser:
    parser = leaves.add(f"{action} deployment", f"actions:{action}", help)
    parser.add_argument("deployment", metavar="DEPLOYMENT", help="its name or id")
    _add_request_id(parser)
    return parser


def _add_window(parser: Parser) -> None:
    parser.add_argument(
        "--initialize-timeout",
        type=_duration_ms,
        metavar="TIME",
        help="how long the start may take, as 90s or 10m (the deployment's own)",
    )


def _add_instances(leaves: _Leaves) -> None:
    for action in ("start", "stop"):
        run = f"actions:{action}_instance"
        parser = leaves.add(f"{action} instance", run, f"{action} one instance")
        parser.add_argument("instance", metavar="DEPLOYMENT/INDEX", help="as my-model/0")
        if action == "start":
            parser.add_argument("--evict", action="store_true", help="make room for it")
        _add_request_id(parser)


def _add_status(leaves: _Leaves, actions: argparse._SubParsersAction[Parser]) -> None:
    leaves.add("list deployments", "views:list_deployments", "list all deployments")
    leaves.add("list engines", "engines:list_on_hosts", "list the engines that a role publishes")
    inspect = leaves.add("inspect deployment", "views:inspect_deployment", "show its full record")
    inspect.add_argument("deployment", metavar="DEPLOYMENT", help="its name or id")
    inspect.add_argument(
        "--effective-config", action="store_true", help="the resolved configuration instead"
    )
    # `status` alone is a command as well.
    whole = actions.add_parser(
        "status",
        help=_ACTIONS["status"],
        description="Show the role and its deployments, or one deployment.",
        allow_abbrev=False,
    )
    _add_everywhere(whole, output_format=True)
    whole.set_defaults(run=f"{_COMMANDS}.views:status")
    below = whole.add_subparsers(metavar="RESOURCE", dest="resource")
    one = below.add_parser(
        "deployment",
        help="show one deployment and its instances",
        description="Show one deployment and its instances.",
        allow_abbrev=False,
    )
    _add_everywhere(one, output_format=True)
    one.set_defaults(run=f"{_COMMANDS}.views:status_deployment")
    one.add_argument("deployment", metavar="DEPLOYMENT", help="its name or id")
    one.add_argument("--watch", action="store_true", help="show every change, until Ctrl-C")


def _add_documents(leaves: _Leaves) -> None:
    validate = leaves.add("validate config", "documents:validate", "check a document offline")
    validate.add_argument("--file", required=True, metavar="FILE", help="a document of any kind")
    show = leaves.add("config show", "documents:show", "show every setting and its source")
    show.add_argument("--role", choices=("standalone",), default="standalone", help="of this role")
    for parser in (validate, show):
        parser.add_argument(
            "--set", action="append", default=[], metavar="PATH=VALUE", help="lay a setting over it"
        )


def _add_engines(leaves: _Leaves) -> None:
    detect = leaves.add("engine detect", "engines:detect", "find engines that are installed here")
    _add_list(detect, "--path", "DIR", "look here as well")
    add = leaves.add("engine add", "engines:add", "register an engine")
    add.add_argument("path", nargs="?", metavar="PATH", help="its environment or executable")
    add.add_argument("--name", metavar="NAME", help="the profile's name (the engine's)")
    add.add_argument("--deep-park", choices=("enabled", "disabled"), help="whether it may park")
    add.add_argument(
        "--drift", choices=("warn", "refuse"), default="warn", help="when its files change (warn)"
    )
    _add_list(add, "--arg", "ARG", "an argument of every launch, as --arg=--threads --arg=4")
    _add_list(add, "--approve-option", "OPTION", "let deployments use an option")
    _add_list(add, "--approve-path", "DIR", "let options name paths below it")
    _add_list(add, "--env", "NAME=VALUE", "a variable of every launch")
    _add_list(add, "--approve-env", "GLOB", "let deployments set variables")
    leaves.add("engine list", "engines:list_registered", "list registered engines")
    remove = leaves.add("engine remove", "engines:remove", "take a registered engine out")
    remove.add_argument("name", metavar="NAME", help="the profile")
    remove.add_argument("--drain", action="store_true", help="stop the instances that run on it")


def _add_simulated(leaves: _Leaves) -> None:
    checkpoint = leaves.add(
        "simulate checkpoint",
        "simulate:checkpoint",
        "write a checkpoint of any size that takes no room",
        output_format=False,
    )
    checkpoint.add_argument("folder", metavar="DIR", help="a new or empty folder")
    checkpoint.add_argument("--weights", required=True, metavar="SIZE", help="as 12GiB")
    checkpoint.add_argument(
        "--format",
        dest="weights_format",
        choices=("safetensors", "gguf"),
        default="safetensors",
        help="of the model's files (safetensors)",
    )
    checkpoint.add_argument("--seed", type=int, default=0, metavar="N", help="changes its digest")
    demo = leaves.add("demo", "demo:demo", "show all of it on a simulated machine")
    demo.add_argument("--keep", action="store_true", help="leave it running at the end")
    demo.add_argument("--end", metavar="DIR", help="end a demo that was left running")


def _add_list(parser: Parser, flag: str, metavar: str, help: str) -> None:
    parser.add_argument(flag, action="append", default=[], metavar=metavar, help=help)


def _revision(text: str) -> int:
    return _checked(text, lambda: int(text) if text.isdecimal() and int(text) > 0 else None)


def _duration_ms(text: str) -> int:
    from capyctl.domain.units import parse_duration_s

    def read() -> int | None:
        try:
            return round(parse_duration_s(text) * 1000) or None
        except ValueError:
            return None

    return _checked(text, read)


def _checked(text: str, read: Callable[[], int | None]) -> int:
    found = read()
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used")
    return found


def leaf_parsers(parser: argparse.ArgumentParser) -> Sequence[tuple[str, argparse.ArgumentParser]]:
    """Every command with its parser, in the grammar's order."""
    found: list[tuple[str, argparse.ArgumentParser]] = []
    if parser.get_default("run") is not None:
        found.append((parser.prog, parser))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                found += leaf_parsers(below)
    return found

"""The command's grammar: every action, resource, option and its help. Loads no command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from capyctl.cli.leaves import (
    COMMANDS,
    Leaves,
    Parser,
    add_everywhere,
    add_list,
    add_request_id,
    duration_ms,
    index,
    kib,
    revision,
)
from capyctl.cli.role_flags import FLAGS

DESCRIPTION = "Runs LLM inference engines on your GPUs: one endpoint, models parked and woken."
_ROLES = {
    "standalone": "run capyctl on this machine alone",
    "server": "run the server of several machines",
    "host": "run this machine's engines for a server",
}
_MACHINE = "a simulated machine: a document, or gpus=2,memory=80GiB,ram=512GiB"
_ACTIONS = {
    "init": "write a role's document and make its directories",
    "start": "start a role, a deployment or one instance",
    "stop": "stop a deployment or one instance",
    "park": "give a model's GPU memory up while its engine lives",
    "preinitialize": "start, check and park, so that the first request only wakes",
    "delete": "remove a deployment; its model files stay",
    "deploy": "send a deployment document",
    "invite": "let a machine join this server",
    "join": "make this machine a host of a server",
    "drain": "move everything off a machine",
    "undrain": "let a drained machine be used again",
    "revoke": "shut a host out for ever, or until it is invited back",
    "list": "list what there is",
    "status": "show how things stand",
    "inspect": "show everything of one thing",
    "logs": "show the end of an engine's log",
    "doctor": "look at this machine for what would be in the way",
    "validate": "check a document offline",
    "config": "show settings and where they come from",
    "engine": "find, register and remove engines",
    "prune": "reclaim room on the disk",
    "simulate": "make things for a simulated machine",
}


def build_parser() -> Parser:
    """The whole grammar."""
    parser = Parser(prog="capyctl", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="show the version and end")
    add_everywhere(parser, output_format=True)
    actions = parser.add_subparsers(metavar="ACTION", dest="action")
    leaves = Leaves(actions, _ACTIONS)
    _add_roles(leaves)
    _add_hosts(leaves)
    _add_models(leaves)
    _add_instances(leaves)
    _add_status(leaves, actions)
    _add_documents(leaves)
    _add_engines(leaves)
    _add_pruning(leaves)
    _add_simulated(leaves)
    return parser


def _add_roles(leaves: Leaves) -> None:
    for kind in ("server", "host"):
        init = leaves.add(f"init {kind}", f"roles:init_{kind}", f"write the document of a {kind}")
        init.add_argument(
            "--output", metavar="FILE", help="the document (config/ in the state directory)"
        )
        if kind == "host":
            init.add_argument("--name", metavar="NAME", help="the host's name (the machine's)")
            _add_simulate(init, f"with the limits of {_MACHINE}")
        add_list(init, "--set", "PATH=VALUE", "state a setting in it")
    for kind, help in _ROLES.items():
        role = leaves.add(f"start {kind}", f"roles:start_{kind}", help)
        add_list(role, "--set", "PATH=VALUE", "set one setting by path")
        for flag in FLAGS[kind]:
            if flag.value is None:
                role.add_argument(flag.name, action="store_true", default=None, help=flag.help)
            else:
                role.add_argument(
                    flag.name, metavar=flag.value, choices=flag.choices, help=flag.help
                )
        if kind != "server":
            _add_simulate(role, f"run on {_MACHINE}")


def _add_simulate(parser: Parser, help: str) -> None:
    parser.add_argument("--simulate", nargs="?", const="", metavar="MACHINE", help=help)


def _add_hosts(leaves: Leaves) -> None:
    invite = leaves.add("invite host", "hosts:invite", "write a join file, good for one machine")
    invite.add_argument("host", metavar="NAME", help="the name it is to have")
    invite.add_argument("--output", required=True, metavar="FILE", help="the join file")
    invite.add_argument("--recover", action="store_true", help="let a revoked host come back")
    invite.add_argument(
        "--expires", type=duration_ms, metavar="TIME", help="how long it is good, up to 1h (15m)"
    )
    add_request_id(invite)
    join = leaves.add("join host", "joining:join", "make this machine a host, with a join file")
    join.add_argument("--join-file", required=True, metavar="FILE", help="from `invite host`")
    join.add_argument("--recover", action="store_true", help="come back after a revocation")
    add_list(join, "--set", "PATH=VALUE", "set one setting by path")
    for action, help in (
        ("drain", "stop what runs on a host, and place nothing there"),
        ("undrain", "let a drained host be used again"),
        ("revoke", "refuse a host's certificate for ever"),
    ):
        parser = leaves.add(f"{action} host", f"hosts:{action}", help)
        parser.add_argument("host", metavar="HOST", help="its name or id")
        if action == "drain":
            parser.add_argument("--wait", action="store_true", help="wait until nothing runs there")
        add_request_id(parser)
    for action, help in (
        ("drain", "stop what runs on this standalone machine, and start nothing"),
        ("undrain", "let a drained standalone machine be used again"),
    ):
        parser = leaves.add(f"{action} standalone", f"hosts:{action}", help)
        if action == "drain":
            parser.add_argument("--wait", action="store_true", help="wait until nothing runs")
        add_request_id(parser)
    leaves.add("list hosts", "hosts:list_hosts", "list the machines of a server")
    inspect = leaves.add("inspect host", "hosts:inspect", "show a machine's full record")
    inspect.add_argument("host", metavar="HOST", help="its name or id")
    doctor = leaves.add("doctor host", "doctor:doctor", "check this machine as a host")
    add_list(doctor, "--set", "PATH=VALUE", "set one setting by path")


def _add_models(leaves: Leaves) -> None:
    deploy = leaves.add("deploy model", "deploy:deploy", "create or replace a deployment")
    deploy.add_argument("--file", required=True, metavar="FILE", help="the deployment document")
    deploy.add_argument("--activate", action="store_true", help="start it as well")
    deploy.add_argument("--wait", action="store_true", help="wait until it serves")
    deploy.add_argument("--revision", type=revision, metavar="N", help="replace this revision")
    add_list(deploy, "--engine-env", "NAME=VALUE", "a variable of this model's engine")
    deploy.add_argument("--hf-endpoint", metavar="URL", help="the Hugging Face mirror to ask")
    _add_window(deploy)
    add_request_id(deploy)
    start = _on_deployment(leaves, "start", "start a deployment, or wake it")
    start.add_argument("--wait", action="store_true", help="wait until every instance serves")
    start.add_argument("--evict", action="store_true", help="park or stop others to make room")
    _add_window(start)
    stop = _on_deployment(leaves, "stop", "stop a deployment until it is started again")
    stop.add_argument("--wait", action="store_true", help="wait until every instance is stopped")
    park = _on_deployment(leaves, "park", "park every instance that serves")
    park.add_argument("--wait", action="store_true", help="wait until they are parked")
    first = _on_deployment(leaves, "preinitialize", "start, check and park every instance in turn")
    first.add_argument("--wait", action="store_true", help="wait until all of it is done")
    delete = _on_deployment(leaves, "delete", "delete a stopped deployment", "deleting:delete")
    delete.add_argument("--stop", action="store_true", help="stop it first, and wait for that")


def _on_deployment(leaves: Leaves, action: str, help: str, run: str | None = None) -> Parser:
    parser = leaves.add(f"{action} deployment", run or f"actions:{action}", help)
    parser.add_argument("deployment", metavar="DEPLOYMENT", help="its name or id")
    add_request_id(parser)
    return parser


def _add_window(parser: Parser) -> None:
    parser.add_argument(
        "--initialize-timeout",
        type=duration_ms,
        metavar="TIME",
        help="how long the start may take, as 90s or 10m (the deployment's own)",
    )


def _add_instances(leaves: Leaves) -> None:
    for action in ("start", "stop"):
        run = f"actions:{action}_instance"
        parser = leaves.add(f"{action} instance", run, f"{action} one instance")
        parser.add_argument("instance", metavar="DEPLOYMENT/INDEX", help="as my-model/0")
        if action == "start":
            parser.add_argument("--evict", action="store_true", help="make room for it")
            parser.add_argument("--wait", action="store_true", help="wait until it serves")
        else:
            parser.add_argument("--wait", action="store_true", help="wait until it is stopped")
        add_request_id(parser)


def _add_status(leaves: Leaves, actions: argparse._SubParsersAction[Parser]) -> None:
    leaves.add("list deployments", "views:list_deployments", "list all deployments")
    leaves.add("list engines", "engines:list_on_hosts", "list the engines that a role publishes")
    inspect = leaves.add("inspect deployment", "views:inspect_deployment", "show its full record")
    inspect.add_argument("deployment", metavar="DEPLOYMENT", help="its name or id")
    inspect.add_argument(
        "--effective-config", action="store_true", help="the resolved configuration instead"
    )
    logs = leaves.add("logs deployment", "logs:logs_of_deployment", "show its engine's last lines")
    logs.add_argument(
        "deployment", metavar="DEPLOYMENT", help="its name or id, also with an instance: my-model/0"
    )
    logs.add_argument(
        "--instance", type=index, metavar="N", help="of this instance, where there are several"
    )
    one = leaves.add("logs instance", "logs:logs_of_instance", "show its engine's last lines")
    one.add_argument("instance", metavar="DEPLOYMENT/INDEX", help="as my-model/0")
    for parser in (logs, one):
        parser.add_argument(
            "--kib", type=kib, default=64, metavar="KIB", help="how much, up to 256 (64)"
        )
    # `status` alone is a command as well.
    whole = actions.add_parser(
        "status",
        help=_ACTIONS["status"],
        description="Show the role and its deployments, or one deployment.",
        allow_abbrev=False,
    )
    add_everywhere(whole, output_format=True)
    whole.set_defaults(run=f"{COMMANDS}.views:status")
    below = whole.add_subparsers(metavar="RESOURCE", dest="resource")
    one = below.add_parser(
        "deployment",
        help="show one deployment and its instances",
        description="Show one deployment and its instances.",
        allow_abbrev=False,
    )
    add_everywhere(one, output_format=True)
    one.set_defaults(run=f"{COMMANDS}.views:status_deployment")
    one.add_argument("deployment", metavar="DEPLOYMENT", help="its name or id")
    one.add_argument("--watch", action="store_true", help="show every change, until Ctrl-C")


def _add_documents(leaves: Leaves) -> None:
    validate = leaves.add("validate config", "documents:validate", "check a document offline")
    validate.add_argument("--file", required=True, metavar="FILE", help="a document of any kind")
    show = leaves.add("config show", "documents:show", "show every setting and its source")
    show.add_argument("--role", choices=tuple(_ROLES), help="of this role")
    inspect = leaves.add(
        "inspect config", "documents:inspect_config", "show the settings that are stated"
    )
    inspect.add_argument("--effective", action="store_true", help="and all that have their default")
    inspect.add_argument("--role", choices=tuple(_ROLES), help="of this role")
    for parser in (validate, show, inspect):
        parser.add_argument(
            "--set", action="append", default=[], metavar="PATH=VALUE", help="lay a setting over it"
        )


def _add_engines(leaves: Leaves) -> None:
    detect = leaves.add("engine detect", "engines:detect", "find engines that are installed here")
    add_list(detect, "--path", "DIR", "look here as well")
    add = leaves.add("engine add", "engines:add", "register an engine")
    add.add_argument("path", nargs="?", metavar="PATH", help="its environment or executable")
    add.add_argument("--name", metavar="NAME", help="the profile's name (the engine's)")
    add.add_argument("--deep-park", choices=("enabled", "disabled"), help="whether it may park")
    add.add_argument(
        "--drift", choices=("warn", "refuse"), default="warn", help="when its files change (warn)"
    )
    add_list(add, "--arg", "ARG", "an argument of every launch, as --arg=--threads --arg=4")
    add_list(add, "--approve-option", "OPTION", "let deployments use an option")
    add_list(add, "--approve-path", "DIR", "let options name paths below it")
    add_list(add, "--env", "NAME=VALUE", "a variable of every launch")
    add_list(add, "--approve-env", "GLOB", "let deployments set variables")
    leaves.add("engine list", "engines:list_registered", "list registered engines")
    remove = leaves.add("engine remove", "engines:remove", "take a registered engine out")
    remove.add_argument("name", metavar="NAME", help="the profile")
    remove.add_argument("--drain", action="store_true", help="stop the instances that run on it")


def _add_pruning(leaves: Leaves) -> None:
    prune = leaves.add(
        "prune sources", "pruning:prune_sources", "find downloads that no deployment refers to"
    )
    prune.add_argument("--host-config", metavar="FILE", help="of the role with this document")
    prune.add_argument("--apply", action="store_true", help="remove them")


def _add_simulated(leaves: Leaves) -> None:
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

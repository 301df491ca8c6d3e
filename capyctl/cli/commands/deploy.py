"""`deploy model`: sends a deployment document, and starts what it describes when asked to."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capyctl.cli.call import Call
from capyctl.cli.commands.actions import open_start, show_ready
from capyctl.cli.failure import CommandFailed
from capyctl.cli.journal import Step
from capyctl.cli.pinning import pinned
from capyctl.cli.render import summary
from capyctl.cli.role import expanded, read_document
from capyctl.cli.sending import read_snapshot, send_change
from capyctl.cli.snapshot import Row, deployment_of, find_deployment
from capyctl.cli.starting import Start
from capyctl.cli.variables import listed, pair_of
from capyctl.client.requests import PREFIX

_NO_ROOM = frozenset({"capacity_blocked", "startup_requires_empty_host"})


def deploy(call: Call) -> int:
    """`deploy model`"""
    options = call.options
    if options.wait and not options.activate:
        raise CommandFailed("usage", "--wait needs --activate: without it nothing is started")
    stated = options.engine_env or listed(call.here.environ, "CAPYCTL_ENGINE_ENV")
    document = with_engine_env(
        with_home(read_document(Path(options.file)), call.here.environ), stated
    )
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)
    start = open_start(
        call,
        {
            "command": "deploy model",
            "document_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "revision": options.revision,
            "activate": options.activate,
        },
    )
    receipt = _send_configuration(call, start, document)
    if not options.activate:
        _show(call, receipt, document)
        return 0
    snapshot = read_snapshot(start.client)
    deployment = deployment_of(snapshot, str(receipt["deployment_id"]))
    if deployment is None:
        raise CommandFailed("not_found", "the deployment was deleted before it could be started")
    return _activate(call, start, receipt, deployment)


def with_home(document: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """The document with a leading ``~/`` of the model's path against the caller's home."""
    model = document.get("model")
    if isinstance(model, str):
        model = expanded(model, environ)
    elif isinstance(model, Mapping):
        model = _expanded_paths(model, environ)
    return {**document, **({} if model is None else {"model": model})}


def with_engine_env(document: dict[str, Any], stated: Sequence[str]) -> dict[str, Any]:
    """The document with variables of the command line in its ``engine_config.env``.

    Raises:
        CommandFailed: ``engine_env_conflict:<name>``: the document states it as well.
    """
    if not stated:
        return document
    config = document.get("engine_config") or {}
    held = config.get("env") or {} if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(held, Mapping):
        raise CommandFailed("invalid_config", "engine_config.env: expected a map of variables")
    added: dict[str, str] = {}
    for name, value in (pair_of(text, "--engine-env") for text in stated):
        if name in held or name in added:
            raise CommandFailed(f"engine_env_conflict:{name}", "the variable is stated twice")
        added[name] = value
    return {**document, "engine_config": {**config, "env": {**held, **added}}}


def _expanded_paths(value: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, held in value.items():
        if isinstance(held, Mapping):
            found[name] = _expanded_paths(held, environ)
        else:
            is_path = name == "path" and isinstance(held, str)
            found[name] = expanded(held, environ) if is_path else held
    return found


def _configuration(call: Call, start: Start, document: Mapping[str, Any]) -> Step:
    """The create or replace, as it was recorded or to be recorded now."""
    revision = call.options.revision
    name = "create" if revision is None else "revise"
    stored = start.request.stored(name)
    if stored is not None:
        return stored
    document = pinned(call, document)
    if revision is None:
        fields = {"config": document, "activate": False}
        return start.request.record(name, "POST", f"{PREFIX}/deployments", fields)
    wanted = document.get("name")
    if not isinstance(wanted, str):
        raise CommandFailed("invalid_config", "name: state the deployment's name")
    deployment = find_deployment(read_snapshot(start.client), wanted)
    path = f"{PREFIX}/deployments/{deployment['id']}"
    fields = {"config": document, "expected_revision": revision}
    return start.request.record(name, "PUT", path, fields)


def _send_configuration(call: Call, start: Start, document: Mapping[str, Any]) -> Row:
    """The receipt of the create or replace. A conflict says which revision is there."""
    try:
        return send_change(start.client, _configuration(call, start, document))
    except CommandFailed as failure:
        if failure.code not in ("route_conflict", "revision_conflict"):
            raise
        with contextlib.suppress(CommandFailed):
            there = find_deployment(read_snapshot(start.client), str(document.get("name")))
            failure.message += (
                f". {there['name']} is deployed, at revision {there['revision']}: "
                f"`--revision {there['revision']}` replaces it"
            )
        raise


def _activate(call: Call, start: Start, receipt: Row, deployment: Row) -> int:
    """Start it once its files are measured: at once the start would always be refused."""
    try:
        action = start.send_when_possible(deployment)
    except CommandFailed as failure:
        # A replaced model that runs is restarted by the replace: there is nothing to start.
        if failure.code != "runtime_retained":
            if failure.code in _NO_ROOM:
                name = deployment["name"]
                failure.message += f". {name} is deployed, not started"
                # The refusal speaks of it only where it would help.
                if "--evict" in failure.message:
                    failure.message += f"; `capyctl start deployment {name}` takes --evict"
            raise
        action = {"deployment_id": deployment["id"], "operation_id": receipt["operation_id"]}
    receipt = {**receipt, **action}
    if call.options.wait:
        ready = start.wait_until_ready(action)
        show_ready(call, _with_digest(receipt, ready), ready)
        return 0
    with contextlib.suppress(CommandFailed):
        receipt = _with_digest(
            receipt, find_deployment(read_snapshot(start.client), deployment["id"])
        )
    _show(call, receipt, deployment)
    return 0


def _with_digest(receipt: Row, deployment: Row) -> Row:
    """The receipt tells of the digest as it was before anything was waited for."""
    if "checkpoint_digest" not in receipt:
        return receipt
    return {**receipt, "checkpoint_digest": deployment["checkpoint_digest"]["state"]}


def _show(call: Call, receipt: Row, document: Row) -> None:
    text = summary(
        f"Deployed {document.get('name')}",
        [
            ("Deployment ID", receipt.get("deployment_id")),
            ("Revision", receipt.get("revision")),
            ("Operation", receipt.get("operation_id")),
            ("Checkpoint digest", receipt.get("checkpoint_digest")),
        ],
    )
    call.show(dict(receipt), text)

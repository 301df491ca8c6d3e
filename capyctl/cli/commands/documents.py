"""validate config and config show: documents and settings, without asking a running role."""

from __future__ import annotations

import json
from pathlib import Path

from capyctl.cli.call import Call
from capyctl.cli.failure import CommandFailed
from capyctl.cli.render import record, table
from capyctl.cli.role import explicit_config

_SHOWN = ("SETTING", "VALUE", "SOURCE")


def validate(call: Call) -> int:
    """`validate config`"""
    from capyctl.config.problems import InvalidDocument
    from capyctl.config.validate import validate_file
    from capyctl.domain.errors import Refused

    options = call.options
    try:
        valid = validate_file(Path(options.file), sets=options.set, env=call.here.environ)
    except InvalidDocument as problem:
        raise CommandFailed(
            "invalid_config", str(problem), details={"path": problem.problem.path}
        ) from problem
    except Refused as refused:
        raise CommandFailed(refused.code, refused.message, details=refused.details) from refused
    document = json.loads(valid.text)
    lines = [valid.summary, "", record(document)]
    if valid.needs_host:
        lines += ["", "Not checked without a host:", *(f"  {one}" for one in valid.needs_host)]
    value = {
        "valid": True,
        "kind": valid.kind,
        "document": document,
        "needs_host": list(valid.needs_host),
    }
    call.show(value, "\n".join(lines))
    return 0


def show(call: Call) -> int:
    """`config show`"""
    from capyctl.config.problems import InvalidDocument
    from capyctl.config.settings import load_standalone

    options = call.options
    state_root = call.state_root()
    try:
        settings = load_standalone(
            state_root,
            config_path=explicit_config(call),
            flags={},
            env=call.here.environ,
            sets=options.set,
        )
    except InvalidDocument as problem:
        raise CommandFailed(
            "invalid_config", str(problem), details={"path": problem.problem.path}
        ) from problem
    rows = [
        {"path": one.path, "value": one.value, "source": one.source} for one in settings.settings
    ]
    head = f"role {options.role}, document {settings.document_path}"
    text = table(_SHOWN, [tuple(row.values()) for row in rows])
    value = {"role": options.role, "document": str(settings.document_path), "settings": rows}
    call.show(value, f"{head}\n{text}")
    return 0

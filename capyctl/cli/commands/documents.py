"""validate config, config show and inspect config: without asking a running role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capyctl.cli.call import Call
from capyctl.cli.failure import CommandFailed
from capyctl.cli.refusing import documents_refused
from capyctl.cli.render import record, stated, table
from capyctl.cli.role import explicit_config, kinds_of, read_document, role_document

if TYPE_CHECKING:
    from capyctl.config.role_document import Laid, Role
    from capyctl.config.role_settings import Setting

ROLES = ("standalone", "server", "host")
_SHOWN = ("SETTING", "VALUE", "SOURCE")


def validate(call: Call) -> int:
    """`validate config`"""
    from capyctl.config.validate import validate_file

    options = call.options
    with documents_refused():
        valid = validate_file(Path(options.file), sets=options.set, env=call.here.environ)
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
    return _show(call, stated_only=False)


def inspect_config(call: Call) -> int:
    """`inspect config`"""
    return _show(call, stated_only=not call.options.effective)


def _show(call: Call, *, stated_only: bool) -> int:
    state_root = call.state_root()
    role = _role(call, state_root)
    with documents_refused():
        laid = _laid(call, role, state_root)
    rows = [
        {"path": one.path, "value": _redacted(one), "source": one.source}
        for one in laid.settings
        if not (stated_only and one.source == "default")
    ]
    head = f"role {role}, document {laid.path}"
    text = table(_SHOWN, [(row["path"], stated(row["value"]), row["source"]) for row in rows])
    value = {"role": role, "document": str(laid.path), "settings": rows}
    call.show(value, f"{head}\n{text}")
    return 0


def _redacted(setting: Setting) -> object:
    """The value, without what is a secret in it."""
    from capyctl.config.named_settings import SECRET_PATHS
    from capyctl.config.overrides import matches
    from capyctl.wire.redaction import REDACTED, redacted

    if setting.value and any(matches(setting.path, secret) for secret in SECRET_PATHS):
        return REDACTED
    name = setting.path.rpartition(".")[2]
    shown: Any = redacted({name: setting.value})
    return shown[name]


def _role(call: Call, state_root: Path) -> str:
    """Of which role, by the option, an explicit document, or what is under the state root.

    Raises:
        CommandFailed: ``role_ambiguous``: several share it.
    """
    stated = call.options.role
    config = explicit_config(call)
    if stated is None and config is not None:
        stated = read_document(config).get("kind")
    if stated in ROLES:
        return str(stated)
    found = kinds_of(state_root)
    if len(found) > 1:
        raise CommandFailed(
            "role_ambiguous",
            f"{' and '.join(found)} share {state_root}: choose one with --role or --config",
        )
    return found[0] if found else "standalone"


def _laid(call: Call, role: str, state_root: Path) -> Laid[Any]:
    """The document with all that is laid over it; checked as far as it is one role's alone."""
    from capyctl.config.host_settings import HOST
    from capyctl.config.role_document import Given, read_role
    from capyctl.config.server_settings import SERVER
    from capyctl.config.settings import STANDALONE

    roles: dict[str, Role[Any]] = {"standalone": STANDALONE, "server": SERVER, "host": HOST}
    given = Given(
        env=call.here.environ,
        sets=call.options.set,
        config_path=role_document(call, state_root, role),
    )
    return read_role(roles[role], state_root, given)

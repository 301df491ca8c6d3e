"""What a started role says of itself."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from capyctl import __version__
from capyctl.config.role_settings import Address, ServingSettings
from capyctl.telemetry.log import Log

NO_ENGINES = "none: register one with `capyctl engine add`"


def show_banner(role: str, lines: Mapping[str, str], log: Log) -> None:
    """Lines in a log for people, one event in JSON."""
    shown = [f"capyctl {__version__} {role} ready"]
    shown += [f"  {_title(name):<12} {text}" for name, text in lines.items()]
    if log.plain("\n".join(shown)):
        return
    fields: dict[str, Any] = dict(lines)
    if "credentials" in fields:
        # Under its own name the log would take the path for a credential.
        fields["key_file"] = fields.pop("credentials")
    log.event("ready", version=__version__, **fields)


def shown_inference(settings: ServingSettings, inference: Address) -> str:
    key = "API key required" if settings.inference_key_required else "no key"
    return f"{inference} ({key})"


def warn_of_open_inference(settings: ServingSettings, inference: Address, log: Log) -> None:
    """Where the key is off beyond this machine."""
    if settings.inference_key_required or ipaddress.ip_address(inference.host).is_loopback:
        return
    log.warning(
        "inference_unauthenticated",
        address=str(inference),
        message="anyone who reaches this address can use every model",
    )


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()

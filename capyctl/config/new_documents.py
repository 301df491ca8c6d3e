"""The documents that `capyctl init` writes: everything stated that belongs to this machine."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from capyctl.config.check import check
from capyctl.config.host_document import HostDocument
from capyctl.config.overrides import lay_over, path_overrides, setting_paths
from capyctl.config.server_document import BOOTSTRAP, CONTROL, ServerDocument
from capyctl.domain.devices import MachineShape, MemoryDomain, MemoryKind
from capyctl.domain.units import MIB

INGRESS_PORT = 8444
_SERVER_HEAD = """\
# Server role of capyctl, run with `capyctl start server`. What is not stated has its default:
# see docs/reference/server-document.md. For hosts on other machines, bind bootstrap and control
# to an address that they reach, and state it under enrollment.
"""
_HOST_HEAD = """\
# Host role of capyctl: `capyctl join host` once, then `capyctl start host`. What is not stated has
# its default: see docs/reference/host-document.md. The server reaches this machine's engines at
# ingress.address.
"""


def new_server_document(state_root: Path, sets: Sequence[str]) -> str:
    """Text of a server's document, with ``--set`` values in it.

    Raises:
        InvalidDocument: a value that cannot stand.
    """
    document = {
        "schema_version": 1,
        "kind": "server",
        "state_dir": str(state_root),
        "listeners": {
            "management": {"bind": "127.0.0.1:7443"},
            "inference": {"bind": "0.0.0.0:8443", "authentication": "api_key"},
            "bootstrap": {"bind": BOOTSTRAP},
            "control": {"bind": CONTROL},
        },
        "control": {"heartbeat_suspend_after": "5s", "heartbeat_lost_after": "30s"},
    }
    laid = _laid(document, ServerDocument, sets, "server")
    return _SERVER_HEAD + _text(laid)


def new_host_document(
    state_root: Path, *, name: str, shape: MachineShape, sets: Sequence[str]
) -> str:
    """Text of a host's document with the limits derived from its machine, likewise.

    Raises:
        InvalidDocument: a value that cannot stand.
    """
    document = {
        "schema_version": 1,
        "kind": "host",
        "name": name,
        "state_dir": str(state_root),
        "model_store": {"path": "~/models"},
        "ingress": {
            "transport": "mutual_tls",
            "bind": f"0.0.0.0:{INGRESS_PORT}",
            "address": f"{own_address()}:{INGRESS_PORT}",
        },
        "resource_policy": {
            "domains": {domain.name: _domain(domain) for domain in shape.domains},
            "devices": {
                gpu.id: {"domain": gpu.domain, "physical_gpu_uuid": gpu.uuid} for gpu in shape.gpus
            },
        },
    }
    laid = _laid(document, HostDocument, sets, "host")
    return _HOST_HEAD + _text(laid)


def own_address() -> str:
    """The address that this machine has on its way out; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            found: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return found


def _domain(domain: MemoryDomain) -> dict[str, str]:
    kinds = {MemoryKind.UNIFIED: "unified", MemoryKind.DISTINCT: "distinct"}
    device = {"device": str(domain.gpu)} if domain.gpu is not None else {}
    return {
        "memory": kinds.get(domain.kind, "device"),
        **device,
        "managed_limit": _size(domain.managed_limit_bytes),
        "free_reserve": _size(domain.free_reserve_bytes),
        "parked_limit": _size(domain.parked_limit_bytes),
    }


def _size(size_bytes: int) -> str:
    """Whole MiB, never more than there is."""
    return f"{size_bytes // MIB}MiB"


def _laid(
    document: Mapping[str, Any], model: Any, sets: Sequence[str], what: str
) -> dict[str, Any]:
    paths = setting_paths(model, maps=True)
    laid, _ = lay_over(document, path_overrides(paths, sets=sets, env={}, what=what), (), what)
    check(model, laid, what=what)
    return laid


def _text(document: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True)
    return text

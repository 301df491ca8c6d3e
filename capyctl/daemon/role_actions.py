"""What a role does on its control socket beside showing and reading profiles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import trio

from capyctl.checkpoints.sources import RemoteSources
from capyctl.daemon.publishing import Publishing
from capyctl.domain.specs import DeploymentSpec

RoleAction = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Request to answer, both as JSON objects."""


def retiring(
    publishing: Publishing, users: Callable[[str], list[str]], changed: Callable[[], None]
) -> Mapping[str, RoleAction]:
    """``retire``: nothing new starts on the profile ``name``; who still runs on it.
    ``keep``: it stays after all."""

    async def retire(request: Mapping[str, Any]) -> dict[str, Any]:
        name = str(request.get("name"))
        try:
            publishing.retirements.begin(name)
        except OSError as problem:
            return {"ok": False, "code": "internal", "message": f"not recorded: {problem}"}
        changed()
        return {"ok": True, "deployments": users(name)}

    async def keep(request: Mapping[str, Any]) -> dict[str, Any]:
        publishing.retirements.end(str(request.get("name")))
        changed()
        return {"ok": True}

    return {"retire": retire, "keep": keep}


def pruning(
    sources: RemoteSources, specs: Callable[[], Iterable[DeploymentSpec]]
) -> Mapping[str, RoleAction]:
    """``prune_sources``: downloads that no deployment refers to; removed with ``apply``."""

    async def prune(request: Mapping[str, Any]) -> dict[str, Any]:
        known = tuple(specs())
        keys = frozenset(spec.source.key for spec in known if spec.source is not None)
        paths = [path for spec in known for path in (spec.model_path, spec.draft_path) if path]
        found = await sources.prune(keys, tuple(paths), apply=request.get("apply") is True)
        return {
            "ok": True,
            "sources": [
                {"source": one.key, "bytes": one.held_bytes, "complete": one.complete}
                for one in found
            ],
        }

    return {"prune_sources": prune}


def refused(code: str, message: str) -> RoleAction:
    """An action that this role leaves to another one."""

    async def refuse(request: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"ok": False, "code": code, "message": message}

    return refuse

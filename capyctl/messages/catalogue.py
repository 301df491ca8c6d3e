"""Everything the catalogue may be told: the one owner of names and routes."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from capyctl.domain.ids import DeploymentId
from capyctl.domain.specs import DeploymentSpec
from capyctl.messages.deployment import ReceiptKey


@attrs.frozen(kw_only=True)
class Create:
    """A new deployment. From: the API, as an ask; answered with the receipt's JSON."""

    spec: DeploymentSpec
    receipt: ReceiptKey


@attrs.frozen(kw_only=True)
class ClaimRoutes:
    """A replace wants this name and these routes. Answered to the deployment."""

    claim: str
    deployment: DeploymentId
    name: str
    routes: tuple[str, ...]


@attrs.frozen(kw_only=True)
class KeepRoutes:
    """The replace was committed (or not): from now on only these are the deployment's."""

    deployment: DeploymentId
    name: str
    routes: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Deleted:
    """A deployment is no more: its name and routes are free. From: its actor."""

    deployment: DeploymentId


CatalogueMessage: TypeAlias = Create | ClaimRoutes | KeepRoutes | Deleted

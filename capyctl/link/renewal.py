"""A host's certificate renewed over its link, while both sides go on with what they do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import attrs
import trio

from capyctl.domain.ids import HostId
from capyctl.link.certificates import BadCertificate
from capyctl.link.identity import HostTls
from capyctl.link.invitations import RenewalRefused
from capyctl.wire.link import Renew, Renewed

LOOK_S = 3600.0
"""How often a host looks whether it is due; each new session looks at once."""

RenewHostCertificate: TypeAlias = Callable[[str, HostId, str], Awaitable[str]]
"""``(request, host, fingerprint in use) -> PEM``, as `enrolment.Enrolment.renew`. May raise
RenewalRefused."""


class Renewing(Protocol):
    """A host's side, as its session uses it."""

    async def run(self, post: Callable[[Renew], None]) -> None:
        """Ask whenever it is due, until cancelled."""

    def take(self, answer: Renewed) -> None:
        """The server's answer. Never raises."""


@attrs.define(eq=False, kw_only=True)
class HostRenewal:
    """Implements `Renewing` for the certificate in ``tls``."""

    tls: HostTls
    wall_ms: Callable[[], int]
    log: Callable[..., None]
    every_s: float = LOOK_S

    async def run(self, post: Callable[[Renew], None]) -> None:
        while True:
            if self.tls.renewal_is_due(self.wall_ms()):
                in_use = self.tls.identity.shown.fingerprint
                post(Renew(request=self.tls.renewal_request(), in_use=in_use))
            await trio.sleep(self.every_s)

    def take(self, answer: Renewed) -> None:
        if answer.certificate is None:
            self.log("certificate_not_renewed", why=answer.why)
            return
        try:
            self.tls.renewed(answer.certificate)
        except (BadCertificate, OSError) as problem:
            self.log("certificate_not_renewed", why=str(problem))
        else:
            self.log("certificate_renewed", until_ms=self.tls.identity.shown.expires_at_ms)


async def answer_renewal(renew: RenewHostCertificate, host: HostId, asked: Renew) -> Renewed:
    """The server's answer to a host that asks for another certificate."""
    try:
        return Renewed(certificate=await renew(asked.request, host, asked.in_use))
    except RenewalRefused as refused:
        return Renewed(why=str(refused))


async def renews_none(_request: str, host: HostId, _in_use: str) -> str:
    """Where no authority is at hand, as in tests of the link."""
    raise RenewalRefused(f"no certificate is given to host {host} here")

"""Whom the data planes of two machines trust: contexts, and a look at who is met."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import attrs

from capyctl.domain.ids import HostId


@attrs.frozen(kw_only=True, eq=False)
class HostTls:
    """How the server meets the ingress of a host. All are called in the middle of a step."""

    context: Callable[[], ssl.SSLContext]
    """The one to use now, for TLS 1.3 as a client that shows its certificate."""
    name: Callable[[HostId], str]
    """What a host's certificate is asked for, wherever its address may be."""
    accepts: Callable[[ssl.SSLObject, HostId], bool]
    """Whether the certificate that was met is this host's, and is valid still. Asked once a
    connection, before a byte of a request is sent."""


@attrs.frozen(kw_only=True, eq=False)
class ListenerTls:
    """Whom an ingress lets in. Both are called in the middle of a step."""

    context: Callable[[], ssl.SSLContext]
    """The one to use now, for TLS 1.3 as a server that demands a certificate."""
    accepts: Callable[[ssl.SSLObject], bool]
    """Whether the certificate that was met is the server's, and is valid still."""

    def checked_context(self) -> ssl.SSLContext:
        """The context of now.

        Raises:
            ValueError: it would let in a peer without a certificate, or speak less than TLS 1.3.
        """
        context = self.context()
        if context.verify_mode is not ssl.CERT_REQUIRED:
            raise ValueError("the ingress must demand a certificate of its peer")
        if context.minimum_version is not ssl.TLSVersion.TLSv1_3:
            raise ValueError("the ingress must speak TLS 1.3 only")
        return context

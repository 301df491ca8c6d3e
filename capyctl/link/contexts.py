"""TLS between our own machines: 1.3 only, both sides show a certificate, one authority is trusted.

A context settles that the other side is *one of ours*; which one it is, `link/peers.py` tells. The
client side settles that too: it is given the name of the server or host it means, which stands in
that machine's certificate wherever its address may be. See docs/design/trust.md.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import attrs

from capyctl.domain.ids import HostId

_NAMES_END = "capyctl.internal"


@attrs.frozen(kw_only=True)
class TlsFiles:
    """What one machine shows and whom it trusts. `authority` and `joining` make these."""

    chain: Path
    """Owner-only PEM file with this machine's own key and certificate."""
    authority_pem: str = attrs.field(repr=False)
    """The certificate of the only authority that is trusted."""
    revoked: Path | None = None
    """The server's list of certificates that are refused for ever; hosts have none."""


def server_tls_name(server_id: str) -> str:
    """What a host gives as ``server_hostname`` when it calls the server ``server_id``."""
    return f"{server_id.lower()}.server.{_NAMES_END}"


def host_tls_name(host: HostId) -> str:
    """What the server gives as ``server_hostname`` when it calls the ingress of ``host``."""
    return f"{host.lower()}.host.{_NAMES_END}"


def is_ours(name: str) -> bool:
    """Whether a name in a certificate is one of these two."""
    return name.endswith(f".{_NAMES_END}")


def server_control_context(files: TlsFiles) -> ssl.SSLContext:
    """The server's side of the link: a host without a certificate of ours gets an alert.

    Then ask `peers.peer_host_id`, and `peers.refusal` whether that certificate is still valid.

    Raises:
        ssl.SSLError, OSError: a file is damaged or cannot be read.
    """
    return _mutual(files, ssl.PROTOCOL_TLS_SERVER)


def server_bootstrap_context(files: TlsFiles) -> ssl.SSLContext:
    """The server's side of enrolment: it shows its certificate and asks for none.

    Raises:
        ssl.SSLError, OSError: as above.
    """
    context = _bare(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.chain)
    return context


def server_upstream_context(files: TlsFiles) -> ssl.SSLContext:
    """The server as a client of ingresses. ``server_hostname`` is `host_tls_name` of the host.

    Raises:
        ssl.SSLError, OSError: as above.
    """
    return _mutual(files, ssl.PROTOCOL_TLS_CLIENT)


def host_link_context(files: TlsFiles) -> ssl.SSLContext:
    """A host as it dials the link. ``server_hostname`` is `server_tls_name` of its server.

    In TLS 1.3 a server refuses a client's certificate after the client's handshake is done: the
    alert comes with the first read. `peers.why_refused` puts it into words.

    Raises:
        ssl.SSLError, OSError: as above.
    """
    return _mutual(files, ssl.PROTOCOL_TLS_CLIENT)


def host_ingress_context(files: TlsFiles) -> ssl.SSLContext:
    """A host's ingress: a client without a certificate of ours gets an alert.

    Other hosts have one too, so before a byte is read `peers.peer_server_id` must be the server's.

    Raises:
        ssl.SSLError, OSError: as above.
    """
    return _mutual(files, ssl.PROTOCOL_TLS_SERVER)


@attrs.frozen(kw_only=True)
class ServerContexts:
    """The three that a server needs. They stay the same ones for the life of the process."""

    control: ssl.SSLContext
    bootstrap: ssl.SSLContext
    upstream: ssl.SSLContext

    @classmethod
    def of(cls, files: TlsFiles) -> ServerContexts:
        """Raises:
        ssl.SSLError, OSError: as above.
        """
        return cls(
            control=server_control_context(files),
            bootstrap=server_bootstrap_context(files),
            upstream=server_upstream_context(files),
        )

    def refresh(self, files: TlsFiles) -> None:
        """`refresh_context` for each."""
        for context in (self.control, self.bootstrap, self.upstream):
            refresh_context(context, files)


@attrs.frozen(kw_only=True)
class HostContexts:
    """The two that a host needs, likewise."""

    link: ssl.SSLContext
    ingress: ssl.SSLContext

    @classmethod
    def of(cls, files: TlsFiles) -> HostContexts:
        """Raises:
        ssl.SSLError, OSError: as above.
        """
        return cls(link=host_link_context(files), ingress=host_ingress_context(files))

    def refresh(self, files: TlsFiles) -> None:
        """`refresh_context` for each."""
        for context in (self.link, self.ingress):
            refresh_context(context, files)


def joining_context(authority_pem: str) -> ssl.SSLContext:
    """A machine that has no certificate yet, and trusts the authority in its join file alone.

    Raises:
        ssl.SSLError: ``authority_pem`` is no certificate.
    """
    context = _bare(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority_pem)
    return context


def refresh_context(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Let ``context``, which is in use, go on with the files as they are now.

    Connections that are open stay as they are; new ones see the new certificate and the new list
    of revoked ones. Only the event loop's thread may do this.

    Raises:
        ssl.SSLError, OSError: as above.
    """
    context.load_cert_chain(files.chain)
    if files.revoked is not None and context.verify_mode is ssl.CERT_REQUIRED:
        context.load_verify_locations(cafile=files.revoked)


def _mutual(files: TlsFiles, protocol: int) -> ssl.SSLContext:
    context = _bare(protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=files.authority_pem)
    if files.revoked is not None:
        context.load_verify_locations(cafile=files.revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    context.load_cert_chain(files.chain)
    return context


def _bare(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        # A session that is taken up again skips the look at the certificate.
        context.num_tickets = 0
    return context

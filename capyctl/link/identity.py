"""Who a host is: its id, its server, its key and certificate, kept owner-only in one folder.

``host.pem`` holds key and certificate, ``host.json`` the rest. Each is replaced whole, the JSON
last: once it is there, the machine has joined.
"""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import attrs

from capyctl.config.owner_files import OwnerFileUnusable, read_owner_file, write_owner_file
from capyctl.config.server_document import split_url
from capyctl.domain.ids import HostId
from capyctl.link.certificates import (
    BadCertificate,
    Key,
    Shown,
    check_issued,
    key_to_pem,
    new_key,
    read_key,
    request_pem,
)
from capyctl.link.contexts import HostContexts, TlsFiles

_BYTES_MAX = 64 << 10
_FIELDS = ("authority", "bootstrap_address", "control_address", "host_id", "name", "server_id")


class IdentityUnusable(Exception):
    """The identity is damaged, open to others or incomplete. The text says what to do."""


@attrs.frozen(kw_only=True)
class HostIdentity:
    """What a machine knows of itself once it has joined a server."""

    host: HostId
    name: str
    server_id: str
    bootstrap_address: str
    control_address: str
    """``https://<name or address>:<port>``"""
    files: TlsFiles
    shown: Shown = attrs.field(repr=False)
    """What its certificate says."""

    def why_not_current(self, now_ms: int) -> str | None:
        """Why its server will refuse the certificate, by this machine's clock; None if it is good.

        A warning and no more: the clock may be wrong.
        """
        again = (
            f"on the server `capyctl revoke host {self.name}` and `capyctl invite host {self.name} "
            "--recover --output F`, here `capyctl join host --recover --join-file F`"
        )
        if now_ms >= self.shown.expires_at_ms:
            return (
                "this host's certificate has expired by this machine's clock, as after a year "
                f"without its server. If the clock is right: {again}"
            )
        if now_ms < self.shown.begins_at_ms:
            return (
                "this host's certificate is not valid yet by this machine's clock: set the clock. "
                f"If it is right: {again}"
            )
        return None


def read_identity(identity_dir: Path) -> HostIdentity | None:
    """The identity in this folder; None: this machine has joined no server.

    Raises:
        IdentityUnusable: it is there, and is not what `write_identity` wrote.
    """
    try:
        try:
            body = read_owner_file(identity_dir / "host.json", bytes_max=_BYTES_MAX)
        except FileNotFoundError:
            return None
        fields = _fields(body)
        chain = identity_dir / "host.pem"
        try:
            pem = read_owner_file(chain, bytes_max=_BYTES_MAX).decode("ascii")
        except FileNotFoundError:
            raise BadCertificate(f"{chain} is missing") from None
        shown = check_issued(pem, key=read_key(pem), authority_pem=fields["authority"])
        if shown.host != fields["host_id"]:
            raise BadCertificate("its certificate is another host's")
    except (ValueError, OwnerFileUnusable) as problem:
        raise IdentityUnusable(
            f"this host's identity in {identity_dir} cannot be used: {problem}. Restore it from a "
            "backup, or revoke the host on the server and join again with --recover"
        ) from problem
    return HostIdentity(
        host=HostId(fields["host_id"]),
        name=fields["name"],
        server_id=fields["server_id"],
        bootstrap_address=fields["bootstrap_address"],
        control_address=fields["control_address"],
        files=TlsFiles(chain=chain, authority_pem=fields["authority"]),
        shown=shown,
    )


def write_identity(
    identity_dir: Path,
    *,
    key: Key,
    certificate_pem: str,
    host: HostId,
    name: str,
    server_id: str,
    bootstrap_address: str,
    control_address: str,
    authority_pem: str,
) -> None:
    """Make this machine that host, or give it another key and certificate.

    Raises:
        OSError: it could not be written; call again with the same.
    """
    write_owner_file(identity_dir / "host.pem", key_to_pem(key) + certificate_pem)
    fields = {
        "authority": authority_pem,
        "bootstrap_address": bootstrap_address,
        "control_address": control_address,
        "host_id": host,
        "name": name,
        "server_id": server_id,
    }
    write_owner_file(identity_dir / "host.json", json.dumps(fields, indent=2) + "\n")


class HostTls:
    """A host's contexts, and the renewal of the certificate that they show."""

    def __init__(self, identity: HostIdentity) -> None:
        """Raises:
        IdentityUnusable: its files were damaged since they were read.
        """
        self.identity = identity
        try:
            self.contexts = HostContexts.of(identity.files)
        except (ssl.SSLError, OSError) as problem:
            raise IdentityUnusable(f"{identity.files.chain}: {problem}") from problem
        self._pending: Key | None = None

    def renewal_is_due(self, now_ms: int) -> bool:
        """To be asked a few times a day, and at each connection."""
        return self.identity.shown.is_due(now_ms)

    def renewal_request(self) -> str:
        """A signing request for a fresh key, in PEM; the same one until `renewed`."""
        if self._pending is None:
            self._pending = new_key()
        return request_pem(self._pending)

    def renewed(self, certificate_pem: str) -> None:
        """Show this certificate from the next connection on. Open ones go on as they are.

        Raises:
            BadCertificate: it is not the answer to `renewal_request`, or not for this host;
                the old one stays.
            OSError: it could not be written; the old one stays.
        """
        if self._pending is None:
            raise BadCertificate("no certificate was asked for")
        identity = self.identity
        shown = check_issued(
            certificate_pem, key=self._pending, authority_pem=identity.files.authority_pem
        )
        if shown.host != identity.host:
            raise BadCertificate("the certificate is another host's")
        write_owner_file(identity.files.chain, key_to_pem(self._pending) + certificate_pem)
        self.contexts.refresh(identity.files)
        self.identity = attrs.evolve(identity, shown=shown)
        self._pending = None


def _fields(body: bytes) -> dict[str, str]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or sorted(found) != list(_FIELDS):
        raise BadCertificate("host.json is damaged")
    if not all(isinstance(value, str) for value in found.values()):
        raise BadCertificate("host.json is damaged")
    for name in ("bootstrap_address", "control_address"):
        try:
            split_url(found[name])
        except ValueError as problem:
            raise BadCertificate(f"host.json is damaged: {name}: {problem}") from problem
    return dict(found)

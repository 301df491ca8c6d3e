"""A server's own authority: its key, the server's certificate, and who is refused for ever.

Everything is in the identity folder, owner-only: ``authority.pem`` (key and certificate),
``server.pem`` (likewise) and ``revoked.pem``. Each is replaced whole.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from capyctl.config.owner_files import OwnerFileUnusable, read_owner_file, write_owner_file
from capyctl.domain.certificates import IssuedCertificate
from capyctl.domain.ids import HostId
from capyctl.link.certificates import (
    BadCertificate,
    key_to_pem,
    new_key,
    read_key,
    read_revocation_list,
    read_shown,
    same_names,
)
from capyctl.link.contexts import ServerContexts, TlsFiles
from capyctl.link.signing import Signer

_PEM_BYTES_MAX = 64 << 10
_LIST_BYTES_MAX = 16 << 20


class AuthorityUnusable(Exception):
    """The authority cannot be used as it is on disk. The text says what to do."""


class Authority:
    """Made by `open_authority`. For the event loop's thread alone; its writes are few and small."""

    def __init__(self, identity_dir: Path, signer: Signer, revoked: frozenset[str]) -> None:
        self._dir = identity_dir
        self._signer = signer
        self._revoked = revoked
        self._wanted = revoked
        self._contexts: ServerContexts | None = None
        self.server_id = signer.server_id
        self.certificate_pem = signer.certificate_pem
        """Of the authority; what a join file pins."""

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(
            chain=self._dir / "server.pem",
            authority_pem=self.certificate_pem,
            revoked=self._dir / "revoked.pem",
        )

    @property
    def revoked(self) -> frozenset[str]:
        """Serial numbers of certificates that are refused for ever."""
        return self._revoked

    def contexts(self) -> ServerContexts:
        """The server's contexts: always the same, kept up to date by what is called here.

        Raises:
            AuthorityUnusable: a file was damaged since it was read.
        """
        if self._contexts is None:
            try:
                self._contexts = ServerContexts.of(self.files)
            except (ssl.SSLError, OSError) as problem:
                raise AuthorityUnusable(f"{self._dir}: {problem}") from problem
        return self._contexts

    def issue(self, request: str, host: HostId, now_ms: int) -> IssuedCertificate:
        """A certificate of ``host`` for the key in ``request``. Nothing is stored here.

        Raises:
            BadCertificate: the request is not what it should be.
        """
        return self._signer.for_host(request, host, now_ms)

    def revoke(self, serials: Iterable[str]) -> None:
        """Refuse these for ever: TLS does, from the next connection on.

        Raises:
            OSError: the list cannot be written. They are refused by what is stored of the host
                all the same, and the next call writes them, too.
        """
        self._wanted |= frozenset(serials)
        if self._wanted == self._revoked:
            return
        write_owner_file(self._dir / "revoked.pem", self._signer.revocation_list(self._wanted))
        self._refresh()
        self._revoked = self._wanted

    def keep_current(self, names: Sequence[str], now_ms: int) -> bool:
        """Make the server another certificate where it is due, or ``names`` are others.

        Connections that are open go on; new ones see the new one. To be called at a start and
        a few times a day.

        Args:
            names: the names and addresses, without ports, that hosts reach the server by.

        Returns:
            Whether there is another one.

        Raises:
            BadCertificate: one of ``names`` is no name or address.
            OSError: it cannot be written; the old one stays.
        """
        path = self._dir / "server.pem"
        if self._is_current(path, names, now_ms):
            return False
        key = new_key()
        made = self._signer.for_server(key, names, now_ms)
        write_owner_file(path, key_to_pem(key) + made)
        self._refresh()
        return True

    def _is_current(self, path: Path, names: Sequence[str], now_ms: int) -> bool:
        try:
            pem = read_owner_file(path, bytes_max=_PEM_BYTES_MAX).decode("ascii")
            shown = read_shown(pem)
            read_key(pem)
        except (OSError, ValueError, OwnerFileUnusable):
            return False
        ours = shown.server_id == self.server_id
        return ours and same_names(shown, names) and not shown.is_due(now_ms)

    def _refresh(self) -> None:
        if self._contexts is not None:
            self._contexts.refresh(self.files)


def open_authority(
    identity_dir: Path,
    *,
    new_id: Callable[[], str],
    names: Sequence[str],
    now_ms: int,
    hosts_are_known: bool = False,
) -> Authority:
    """The authority in ``identity_dir``, made at the first start, with a current certificate.

    Args:
        new_id: a fresh ULID, for the server; called at the first start only.
        names: as for `Authority.keep_current`.
        hosts_are_known: hosts have joined this server, so its authority must be there.

    Raises:
        AuthorityUnusable: it is lost, damaged or open to others.
        BadCertificate: one of ``names`` is no name or address.
        OSError: a file cannot be written.
    """
    path = identity_dir / "authority.pem"
    try:
        pem = _read(path, _PEM_BYTES_MAX)
        if pem is None:
            if hosts_are_known:
                raise AuthorityUnusable(
                    f"{path} is lost, and the hosts trust no other: restore the backup of "
                    f"{identity_dir}"
                )
            signer = Signer.new(new_id())
            write_owner_file(path, signer.to_pem())
        else:
            signer = Signer.from_pem(pem)
        listed = _read(identity_dir / "revoked.pem", _LIST_BYTES_MAX)
        revoked = frozenset[str]() if listed is None else read_revocation_list(listed)
    except (BadCertificate, OwnerFileUnusable) as problem:
        raise AuthorityUnusable(
            f"the server's authority cannot be used: {problem}; restore the backup of "
            f"{identity_dir}"
        ) from problem
    if listed is None:
        write_owner_file(identity_dir / "revoked.pem", signer.revocation_list(()))
    authority = Authority(identity_dir, signer, revoked)
    authority.keep_current(names, now_ms)
    return authority


def _read(path: Path, bytes_max: int) -> str | None:
    try:
        return read_owner_file(path, bytes_max=bytes_max).decode("ascii")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as problem:
        raise BadCertificate(f"{path} is damaged") from problem

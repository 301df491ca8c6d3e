"""What a server remembers of the certificates that its authority gave to hosts."""

from __future__ import annotations

import attrs

from capyctl.domain.ids import HostId


@attrs.frozen(kw_only=True)
class IssuedCertificate:
    """One host's certificate. Never deleted: a host is given a few of them in a year."""

    serial: str
    """Hexadecimal; what the list of revoked certificates holds."""
    host: HostId
    fingerprint: str
    """SHA-256 of the DER, hexadecimal, as `domain.hosts.HostRecord.certificates` has it."""
    key_digest: str
    """SHA-256 of its public key, hexadecimal: one key is given one certificate."""
    issued_at_ms: int
    expires_at_ms: int
    pem: str = attrs.field(repr=False)

"""The authority's signature: certificates of our machines, and the list of those it takes back.

What clocks of several machines say is
hours apart, so nothing here is valid only just from now: the authority and its list carry fixed
dates, a machine's certificate begins a week before it was made. See docs/design/trust.md.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from capyctl.domain.certificates import IssuedCertificate
from capyctl.domain.ids import HostId
from capyctl.link.certificates import (
    LIFETIME,
    BadCertificate,
    Key,
    at_ms,
    key_digest,
    key_to_pem,
    new_key,
    read_certificate,
    read_key,
    read_request,
    read_shown,
    to_pem,
)
from capyctl.link.contexts import host_tls_name, server_tls_name
from capyctl.link.peers import HOST_URN, SERVER_URN

BACKDATED = timedelta(days=7)

_FIRST_DAY = datetime(2000, 1, 1, tzinfo=UTC)
_LAST_DAY = datetime(2100, 1, 1, tzinfo=UTC)


class Signer:
    """The authority's key and certificate, in memory."""

    def __init__(self, key: Key, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate
        self.certificate_pem = to_pem(certificate)

    @classmethod
    def new(cls, server_id: str) -> Signer:
        """A fresh authority for the server of this id."""
        key = new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"capyctl {server_id}")])
        usage = _usage(key_cert_sign=True, crl_sign=True)
        uri = x509.UniformResourceIdentifier(SERVER_URN + server_id)
        builder = (
            _builder(name, name, key.public_key(), key.public_key())
            .not_valid_before(_FIRST_DAY)
            .not_valid_after(_LAST_DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def from_pem(cls, pem: str) -> Signer:
        """As `to_pem` wrote it.

        Raises:
            BadCertificate: it is something else, or the certificate is not the key's.
        """
        signer = cls(read_key(pem), read_certificate(pem))
        if key_digest(signer._key.public_key()) != read_shown(pem).key_digest:
            raise BadCertificate("its certificate belongs to another key")
        return signer

    def to_pem(self) -> str:
        return key_to_pem(self._key) + self.certificate_pem

    @property
    def server_id(self) -> str:
        found = read_shown(self.certificate_pem).server_id
        assert found is not None
        return found

    def for_server(self, key: Key, names: Sequence[str], now_ms: int) -> str:
        """The server's own certificate for ``key``.

        Args:
            names: names and addresses, without ports, that it is reached by.

        Raises:
            BadCertificate: one of them is no name or address.
        """
        alternatives: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(SERVER_URN + self.server_id),
            x509.DNSName(server_tls_name(self.server_id)),
            *(_general_name(name) for name in names),
        ]
        common = f"capyctl server {self.server_id}"
        return to_pem(self._leaf(key.public_key(), common, alternatives, now_ms))

    def for_host(self, request: str, host: HostId, now_ms: int) -> IssuedCertificate:
        """A certificate of ``host`` for the key in ``request``; nothing else is taken from it.

        Raises:
            BadCertificate: as `check_request`.
        """
        public = read_request(request).public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        alternatives: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(HOST_URN + host),
            x509.DNSName(host_tls_name(host)),
        ]
        made = self._leaf(public, f"capyctl host {host}", alternatives, now_ms)
        return IssuedCertificate(
            serial=f"{made.serial_number:040x}",
            host=host,
            fingerprint=made.fingerprint(hashes.SHA256()).hex(),
            key_digest=key_digest(public),
            issued_at_ms=now_ms,
            expires_at_ms=at_ms(made.not_valid_after_utc),
            pem=to_pem(made),
        )

    def revocation_list(self, serials: Iterable[str]) -> str:
        """The list that makes TLS refuse certificates of these serial numbers.

        Of two lists OpenSSL goes by the later one. As serials are only ever added, their number
        orders the lists, whatever the clock says.
        """
        numbers = sorted({int(serial, 16) for serial in serials})
        entries = [
            x509.RevokedCertificateBuilder()
            .serial_number(number)
            .revocation_date(_FIRST_DAY)
            .build()
            for number in numbers
        ]
        builder = x509.CertificateRevocationListBuilder(
            issuer_name=self._certificate.subject,
            last_update=_FIRST_DAY + timedelta(seconds=len(numbers)),
            next_update=_LAST_DAY,
            revoked_certificates=entries,
        )
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        builder = builder.add_extension(x509.CRLNumber(len(numbers)), critical=False)
        return to_pem(builder.sign(self._key, hashes.SHA256()))

    def _leaf(
        self,
        public: ec.EllipticCurvePublicKey,
        common_name: str,
        alternatives: Sequence[x509.GeneralName],
        now_ms: int,
    ) -> x509.Certificate:
        now = datetime.fromtimestamp(now_ms // 1000, UTC)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        both = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            _builder(name, self._certificate.subject, public, self._key.public_key())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(now + LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name.lower())
    except ValueError as problem:
        raise BadCertificate(f"{name!r} is no name or address of a machine") from problem

"""Keys, signing requests and certificates of our machines, as text and as what they say.

Only this file and `signing` know the `cryptography` package, and only the roles of several
machines load them.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TypeAlias

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from capyctl.domain.ids import HostId
from capyctl.link.contexts import is_ours
from capyctl.link.peers import HOST_URN, SERVER_URN

REQUEST_BYTES_MAX = 4096
LIFETIME = timedelta(days=365)
RENEWED_AFTER = LIFETIME / 3
"""Leaves a machine that is switched off most of a year to come back by itself."""

Key: TypeAlias = ec.EllipticCurvePrivateKey


class BadCertificate(ValueError):
    """A key, certificate or request is not what it should be. The text never holds a key."""


@attrs.frozen(kw_only=True)
class Shown:
    """What a machine's own certificate says."""

    host: HostId | None
    server_id: str | None
    fingerprint: str
    key_digest: str
    begins_at_ms: int
    expires_at_ms: int
    names: frozenset[str]
    """Names and addresses it is reached by, beside the one that we look for."""

    def is_due(self, now_ms: int) -> bool:
        """Whether it should be renewed: a third of its time is over, or has not come yet."""
        renewal_at_ms = self.expires_at_ms - _ms(LIFETIME - RENEWED_AFTER)
        return not self.begins_at_ms <= now_ms < renewal_at_ms


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: Key) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def read_key(pem: str) -> Key:
    """Raises:
    BadCertificate: ``pem`` has no key of ours.
    """
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError) as problem:
        raise BadCertificate("there is no private key in it") from problem
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not _is_p256(key.public_key()):
        raise BadCertificate("its key is not one on the curve P-256")
    return key


def request_pem(key: Key) -> str:
    """A signing request. It holds the public key and proves that its sender has the other half;
    who that is, the authority does not take from it."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return to_pem(request.sign(key, hashes.SHA256()))


def key_digest(public: object) -> str:
    """SHA-256 of a public key, hexadecimal.

    Raises:
        BadCertificate: it is no key on the curve P-256.
    """
    if not isinstance(public, ec.EllipticCurvePublicKey) or not _is_p256(public):
        raise BadCertificate("its key is not one on the curve P-256")
    info = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(info).hexdigest()


def read_shown(pem: str) -> Shown:
    """What the first certificate in ``pem`` says.

    Raises:
        BadCertificate: there is none, or it is not one of ours.
    """
    certificate = read_certificate(pem)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError) as problem:
        raise BadCertificate("its certificate names no machine") from problem
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1 or not uris[0].startswith((HOST_URN, SERVER_URN)):
        raise BadCertificate("its certificate names no host and no server")
    (uri,) = uris
    return Shown(
        host=HostId(uri.removeprefix(HOST_URN)) if uri.startswith(HOST_URN) else None,
        server_id=uri.removeprefix(SERVER_URN) if uri.startswith(SERVER_URN) else None,
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        key_digest=key_digest(certificate.public_key()),
        begins_at_ms=at_ms(certificate.not_valid_before_utc),
        expires_at_ms=at_ms(certificate.not_valid_after_utc),
        names=frozenset(
            [name for name in names.get_values_for_type(x509.DNSName) if not is_ours(name)]
            + [str(address) for address in names.get_values_for_type(x509.IPAddress)]
        ),
    )


def check_request(pem: str) -> str:
    """The digest of the key that the signing request ``pem`` is for.

    Raises:
        BadCertificate: it is too long, damaged, for another kind of key, or not signed by it.
    """
    return key_digest(read_request(pem).public_key())


def check_issued(pem: str, *, key: Key, authority_pem: str) -> Shown:
    """What the certificate ``pem`` says, once it is sure to be ours and for ``key``.

    Raises:
        BadCertificate: another authority made it, or it is for another key.
    """
    shown = read_shown(pem)
    if shown.key_digest != key_digest(key.public_key()):
        raise BadCertificate("the certificate is for another key")
    try:
        read_certificate(pem).verify_directly_issued_by(read_certificate(authority_pem))
    except Exception as problem:  # foreign bytes: any of the library's errors
        raise BadCertificate("the certificate is from another authority") from problem
    return shown


def read_revocation_list(pem: str) -> frozenset[str]:
    """The serial numbers in ``pem``, as `IssuedCertificate.serial` has them.

    Raises:
        BadCertificate: it is no such list.
    """
    try:
        found = x509.load_pem_x509_crl(pem.encode())
    except ValueError as problem:
        raise BadCertificate("it is no list of revoked certificates") from problem
    return frozenset(f"{entry.serial_number:040x}" for entry in found)


def same_names(shown: Shown, names: Iterable[str]) -> bool:
    """Whether a certificate was made for these names and addresses."""
    wanted = set()
    for name in names:
        try:
            wanted.add(str(ipaddress.ip_address(name)))
        except ValueError:
            wanted.add(name.lower())
    return shown.names == wanted


def read_request(pem: str) -> x509.CertificateSigningRequest:
    if len(pem) > REQUEST_BYTES_MAX:
        raise BadCertificate(f"the signing request is over {REQUEST_BYTES_MAX} characters long")
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        public = request.public_key()
        proved = request.is_signature_valid
    except Exception as problem:  # foreign bytes: any of the library's errors
        raise BadCertificate("the signing request cannot be read") from problem
    key_digest(public)
    if not proved:
        raise BadCertificate("the signing request is not signed by its own key")
    return request


def read_certificate(pem: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError as problem:
        raise BadCertificate("there is no certificate in it") from problem


def to_pem(
    made: x509.Certificate | x509.CertificateSigningRequest | x509.CertificateRevocationList,
) -> str:
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _is_p256(public: ec.EllipticCurvePublicKey) -> bool:
    return isinstance(public.curve, ec.SECP256R1)


def _ms(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)


def at_ms(when: datetime) -> int:
    return int(when.timestamp()) * 1000

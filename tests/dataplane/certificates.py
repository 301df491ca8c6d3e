"""Certificates for tests: an authority, and what it signs. Self-made, for loopback only."""

import datetime
import functools
import ssl
import tempfile
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


@attrs.frozen(eq=False)
class Shown:
    """A key and its certificate as one PEM text."""

    pem: bytes

    def load_into(self, context: ssl.SSLContext) -> None:
        with tempfile.NamedTemporaryFile() as file:
            Path(file.name).write_bytes(self.pem)
            context.load_cert_chain(file.name)


class Authority:
    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._certificate = (
            self._builder(self._name, self._key.public_key(), NOW - DAY, NOW + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def _builder(self, subject, public_key, begin, end) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
        )

    def signs(self, name: str, *, expired: bool = False) -> Shown:
        key = ec.generate_private_key(ec.SECP256R1())
        begin, end = (NOW - 3 * DAY, NOW - 2 * DAY) if expired else (NOW - DAY, NOW + DAY)
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            self._builder(_name(name), key.public_key(), begin, end)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Shown(private + certificate.public_bytes(serialization.Encoding.PEM))


def listening(authority: Authority, shown: Shown) -> ssl.SSLContext:
    """Demands a certificate of the authority's."""
    return _context(ssl.PROTOCOL_TLS_SERVER, authority, shown)


def calling(authority: Authority, shown: Shown | None) -> ssl.SSLContext:
    return _context(ssl.PROTOCOL_TLS_CLIENT, authority, shown)


def _context(protocol: int, authority: Authority, shown: Shown | None) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority.pem)
    if shown is not None:
        shown.load_into(context)
    return context


def peer_name(session: ssl.SSLObject) -> str | None:
    """Whose certificate the other side showed."""
    told = session.getpeercert() or {}
    names = [value for kind, value in told.get("subjectAltName", ()) if kind == "DNS"]
    return names[0] if names else None


@functools.cache
def ours() -> Authority:
    return Authority()


@functools.cache
def of(name: str) -> Shown:
    """What our authority has signed for this name."""
    return ours().signs(name)

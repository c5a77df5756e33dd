"""Authorities and certificates for tests, made on the fly."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def write(self, path: Path) -> Path:
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def issue(self, folder: Path, name: str) -> tuple[Path, Path]:
        """(certificate, key) for 127.0.0.1 and localhost; files of that name are replaced."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        signed = _builder(name, self.name, key).add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = signed.sign(self.key, hashes.SHA256())
        files = folder / f"{name}.pem", folder / f"{name}.key"
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        for file, data in zip(files, (certificate.public_bytes(serialization.Encoding.PEM), secret), strict=True):
            beside = file.with_suffix(".new")
            beside.write_bytes(data)
            beside.replace(file)
        return files


def authority(name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    basic = x509.BasicConstraints(ca=True, path_length=0)
    certificate = _builder(name, name, key).add_extension(basic, critical=True).sign(key, hashes.SHA256())
    return Authority(name, key, certificate)


def _builder(name: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )

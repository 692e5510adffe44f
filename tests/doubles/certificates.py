"""Real certificates for tests: authorities, and what they sign."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass(frozen=True)
class Files:
    """Paths as the environment names them."""

    cert: Path
    key: Path
    ca: Path

    def environment(self, server_name: str = "") -> dict[str, str]:
        named = {"CERT_FILE": self.cert, "KEY_FILE": self.key, "CA_FILE": self.ca, "SERVER_NAME": server_name}
        return {f"TINKERMESH_TLS_{field}": str(value) for field, value in named.items() if value}


class Authority:
    """Signs certificates and writes them under `directory`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        start = datetime.datetime.now(datetime.UTC) - 30 * DAY
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(name))
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + 365 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._ca = directory / f"{name}.crt"
        self._ca.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, file: str, name: str = "tinkermesh", *, days: int = 1) -> Files:
        """A certificate for `name` as server and client; negative `days`: it ended so long ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.datetime.now(datetime.UTC) + days * DAY
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(end - 20 * DAY)
            .not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        files = Files(self._directory / f"{file}.crt", self._directory / f"{file}.key", self._ca)
        files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files

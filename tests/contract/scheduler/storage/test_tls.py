"""TLS and a password on the way to Redis."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from services.common.errors import Unavailable
from services.scheduler.store.connection import connect
from services.scheduler.store.functions import Functions
from tests.doubles.tls_front import TlsFront
from tests.doubles.valkey import ValkeyProcess

PASSWORD = "p@ss/word"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyProcess]:
    server = ValkeyProcess(tmp_path, requirepass=PASSWORD)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(PASSWORD)
    return path


async def test_the_password_of_a_file_opens_the_server_a_wrong_one_does_not(
    server: ValkeyProcess, password_file: Path
) -> None:
    async with connect(server.url, password_file=str(password_file)) as client:
        assert await Functions(client).call("ping", ["tm:{p:a}"]) == b"pong"
    async with connect(server.url.replace("redis://", "redis://:wrong@")) as client:
        with pytest.raises(Unavailable, match="Redis is away") as refused:
            await Functions(client).call("ping", ["tm:{p:a}"])
        assert "wrong" not in refused.value.message.replace("wrong number", "")


@pytest.mark.skipif(which("openssl") is None, reason="openssl makes the certificate")
async def test_a_tls_server_is_reached_with_its_authority_and_not_without(
    server: ValkeyProcess, password_file: Path, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    async with TlsFront(certificate, key, server.port) as port:
        url = f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}"
        async with connect(url, password_file=str(password_file)) as client:
            assert await Functions(client).call("ping", ["tm:{p:a}"]) == b"pong"
        for bad in (f"rediss://localhost:{port}/0", f"redis://localhost:{port}/0"):
            async with connect(bad, password_file=str(password_file)) as client:
                with pytest.raises(Unavailable, match="Redis is away"):
                    await Functions(client).call("ping", ["tm:{p:a}"])

"""Mutual TLS with real certificates: who is let in, who is not, and what the log says of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common import mtls
from services.common.errors import InvalidInput
from services.common.grpc_channel import open_channel
from services.common.grpc_server import GrpcServer
from tests.doubles.certificates import Authority, Files

SERVING = health_pb2.HealthCheckResponse.SERVING


def identity(files: Files, server_name: str = "") -> mtls.Identity:
    made = mtls.identity(files.environment(server_name))
    assert made is not None
    return made


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def server(authority: Authority) -> AsyncIterator[GrpcServer]:
    running = GrpcServer(["tinkermesh.v1.Double"], identity(authority.issue("server")))
    await running.start("127.0.0.1:0")
    yield running
    await running.stop(0)


async def status(server: GrpcServer, client: mtls.Identity | None) -> str:
    """SERVING, or the code and what the client is told."""
    async with open_channel(f"127.0.0.1:{server.port}", client) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name} {error.details()}"
    return "SERVING" if answer.status == SERVING else "other"


async def test_a_service_with_a_certificate_of_the_mesh_is_admitted(server: GrpcServer, authority: Authority) -> None:
    assert await status(server, identity(authority.issue("client"))) == "SERVING"


async def test_a_client_without_tls_is_refused(server: GrpcServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert (await status(server, None)).startswith("UNAVAILABLE")
    assert "WRONG_VERSION_NUMBER" in capfd.readouterr().err


async def test_a_client_without_a_certificate_is_refused_with_a_log_line(
    server: GrpcServer, authority: Authority, capfd: pytest.CaptureFixture[str]
) -> None:
    root = grpc.ssl_channel_credentials(authority.issue("unused").ca.read_bytes())
    options = [("grpc.ssl_target_name_override", "tinkermesh")]
    async with grpc.aio.secure_channel(f"127.0.0.1:{server.port}", root, options=options) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in capfd.readouterr().err


async def test_a_certificate_of_another_authority_is_refused_with_a_log_line(
    server: GrpcServer, authority: Authority, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    foreign = Authority(tmp_path, "foreign").issue("foreign-client")
    ours = Files(foreign.cert, foreign.key, authority.issue("unused").ca)
    assert (await status(server, identity(ours))).startswith("UNAVAILABLE")
    assert "unable to get local issuer certificate" in capfd.readouterr().err


async def test_an_expired_certificate_is_refused_with_a_log_line(
    server: GrpcServer, authority: Authority, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (await status(server, identity(authority.issue("old", days=-2)))).startswith("UNAVAILABLE")
    assert "certificate has expired" in capfd.readouterr().err


async def test_a_server_of_another_authority_is_not_trusted(server: GrpcServer, tmp_path: Path) -> None:
    said = await status(server, identity(Authority(tmp_path, "foreign").issue("foreign-client")))
    assert said.startswith("UNAVAILABLE") and "CERTIFICATE_VERIFY_FAILED" in said


async def test_a_certificate_without_the_name_of_the_mesh_is_refused_with_a_log_line(
    server: GrpcServer, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """The authority may sign for others too."""
    stranger = authority.issue("stranger", "somebody-else")
    with caplog.at_level(logging.WARNING):
        said = await status(server, identity(stranger))
    assert said.startswith("UNAUTHENTICATED") and "tinkermesh" in said
    assert "its certificate is for ['somebody-else']" in caplog.text


async def test_another_name_of_the_mesh_can_be_chosen(authority: Authority) -> None:
    running = GrpcServer(["tinkermesh.v1.Double"], identity(authority.issue("server", "mesh-b"), "mesh-b"))
    await running.start("127.0.0.1:0")
    assert await status(running, identity(authority.issue("client", "mesh-b"), "mesh-b")) == "SERVING"
    assert "mesh-b" in await status(running, identity(authority.issue("other", "tinkermesh"), "mesh-b"))
    await running.stop(0)


async def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    """The files are replaced under the running server, as a mounted Secret is."""
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    files = first.issue("server")
    running = GrpcServer(["tinkermesh.v1.Double"], identity(files))
    await running.start("127.0.0.1:0")
    renewed = second.issue("renewed")
    for source, target in ((renewed.cert, files.cert), (renewed.key, files.key), (renewed.ca, files.ca)):
        target.write_bytes(source.read_bytes())
    assert await status(running, identity(second.issue("client"))) == "SERVING"
    await running.stop(0)


@pytest.mark.parametrize("missing", ["CERT_FILE", "KEY_FILE", "CA_FILE"])
def test_half_of_the_settings_is_refused_naming_the_rest(authority: Authority, missing: str) -> None:
    environment = authority.issue("server").environment()
    del environment[f"TINKERMESH_TLS_{missing}"]
    with pytest.raises(InvalidInput, match=f"TINKERMESH_TLS_{missing} is not set"):
        mtls.identity(environment)


def test_a_file_that_cannot_be_read_or_is_no_certificate_is_named(authority: Authority, tmp_path: Path) -> None:
    environment = authority.issue("server").environment()
    with pytest.raises(InvalidInput, match="TINKERMESH_TLS_KEY_FILE: /nowhere: No such file"):
        mtls.identity({**environment, "TINKERMESH_TLS_KEY_FILE": "/nowhere"})
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InvalidInput, match="is not a PEM file"):
        mtls.identity({**environment, "TINKERMESH_TLS_CA_FILE": str(tmp_path / "text")})


def test_without_settings_there_is_no_tls() -> None:
    assert mtls.identity({}) is None

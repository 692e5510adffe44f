"""The health command of the images."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from services.common.grpc_server import GrpcServer
from services.common.probe import main, status_of


@pytest.fixture
async def server() -> AsyncIterator[GrpcServer]:
    running = GrpcServer(["tinkermesh.v1.Double"])
    await running.start("127.0.0.1:0")
    yield running
    await running.stop(0)


async def test_a_server_that_serves_is_healthy(server: GrpcServer) -> None:
    assert await status_of(f"127.0.0.1:{server.port}") == "SERVING"


async def test_a_server_on_its_way_out_is_not(server: GrpcServer) -> None:
    await server.set_serving(False)
    assert await status_of(f"127.0.0.1:{server.port}") == "NOT_SERVING"


def test_nobody_there_is_an_exit_code_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["127.0.0.1:1"]) == 1
    assert "127.0.0.1:1 UNAVAILABLE" in capsys.readouterr().err


def test_without_an_address_it_says_what_it_wants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "HOST:PORT" in capsys.readouterr().err

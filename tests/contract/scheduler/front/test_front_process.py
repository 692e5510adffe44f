"""The scheduler as an operator meets it: a process with settings, checks, signals and an exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis.asyncio import Redis
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Gone, Unavailable, from_rpc_error
from services.common.keyring import load_pepper
from tests.contract.scheduler.front.mesh import ALICE, Replica, refused, session
from tests.doubles.eventually import eventually
from tests.doubles.valkey import ValkeyProcess

START_SECONDS = 30.0


class Process:
    def __init__(self, directory: Path, redis_url: str, **settings: str) -> None:
        load_pepper(directory / "pepper", create=True)
        self.port_file = directory / "port"
        values = {
            "LISTEN": "127.0.0.1:0",
            "PORT_FILE": str(self.port_file),
            "REDIS_URL": redis_url,
            "STORE_ROOT": str(directory),
            "PEPPER_FILE": str(directory / "pepper"),
            "REPLICA": "process-1",
            **settings,
        }
        environment = os.environ | {f"TINKERMESH_SCHEDULER_{name}": value for name, value in values.items()}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        self.log = (directory / "log").open("w+")
        self.process = subprocess.Popen([sys.executable, "-m", "services.scheduler"], env=environment, stderr=self.log)

    def port(self) -> int:
        deadline = time.monotonic() + START_SECONDS
        while not self.port_file.exists():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)
        return int(self.port_file.read_text())

    def output(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.log.close()


@pytest.fixture
def started(tmp_path: Path, valkey: ValkeyProcess, redis_client: Redis) -> Iterator[Process]:
    process = Process(tmp_path, valkey.url)
    yield process
    process.end()


async def test_process_serves_stops_on_sigterm_and_exits_0_MESH_03(started: Process) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{started.port()}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "tinkermesh.v1.Scheduler", "tinkermesh.v1.Registry", "tinkermesh.v1.Admin"):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(15) == 0, started.output()
    assert "Traceback" not in started.output()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"PEPPER_FILE": "/nonexistent/pepper"}, "pepper"),
        ({"LEASE_SECONDS": "soon"}, "TINKERMESH_SCHEDULER_"),
        ({"LISTEN": "256.0.0.1:1"}, "256.0.0.1"),
    ],
)
def test_start_up_error_ends_with_its_cause(
    tmp_path: Path, valkey: ValkeyProcess, settings: dict[str, str], words: str
) -> None:
    process = Process(tmp_path, valkey.url, **settings)
    try:
        assert process.process.wait(START_SECONDS) == 1
        assert words in process.output()
    finally:
        process.end()


async def test_outage_of_redis_is_unavailable_never_gone_LEASE_04(
    valkey: ValkeyProcess, replica: Replica, redis_client: Redis
) -> None:
    """Nothing is acknowledged while Redis is away, and its data are there afterwards."""
    session_id = await session(replica)
    beat = pb.HeartbeatRequest(tenant_id=ALICE, session_id=session_id)
    valkey.kill()
    try:
        async with refused(Unavailable):
            await replica.scheduler.Heartbeat(beat)
        async with refused(Unavailable):
            await session(replica)
    finally:
        valkey.start()

    async def beats() -> bool:
        try:
            await replica.scheduler.Heartbeat(beat)
        except grpc.aio.AioRpcError as error:
            assert not isinstance(from_rpc_error(error), Gone)
            return False
        return True

    await eventually(beats)


async def test_replica_on_its_way_out_admits_nothing_MESH_03(replica: Replica) -> None:
    session_id = await session(replica)
    parts = replica.app._parts
    assert parts is not None
    parts.front.stop_admission()
    async with refused(Unavailable, "shutting down"):
        await session(replica)
    await replica.scheduler.Heartbeat(pb.HeartbeatRequest(tenant_id=ALICE, session_id=session_id))

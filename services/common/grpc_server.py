"""A grpc.aio server with what operators expect: health, reflection, channelz, error mapping."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_channelz.v1 import channelz, channelz_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from services.common import mtls
from services.common.frames import FRAME_BYTES
from services.common.grpc_boundary import ErrorBoundary
from services.common.telemetry import server_interceptors

CHANNELZ = channelz_pb2.DESCRIPTOR.services_by_name["Channelz"].full_name
MAX_MESSAGE_BYTES = 4 * FRAME_BYTES
SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_channelz", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Calls that have arrived and not yet been picked up. Above the first limit (1,000 by default)
    # gRPC cancels some of them at random, which a burst of 2,048 samples would meet.
    ("grpc.server.max_pending_requests", 50_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
]


class GrpcServer:
    """Add servicers to `.server`, then `start`; `health` tells clients when to come.

    Speaks mutual TLS as `identity`, or the environment's when that sets one up. Raises InvalidInput when it is broken.
    """

    def __init__(self, service_names: Sequence[str], identity: mtls.Identity | None = None) -> None:
        self._identity = identity or mtls.identity()
        boundary = ErrorBoundary(self._identity.admit) if self._identity is not None else ErrorBoundary()
        self.server = grpc.aio.server(interceptors=[*server_interceptors(), boundary], options=list(SERVER_OPTIONS))
        self._names = ("", *service_names)
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        listed = (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME, CHANNELZ)
        reflection.enable_server_reflection(listed, self.server)
        channelz.add_channelz_servicer(self.server)  # type: ignore[arg-type]  # takes both kinds of server
        self.port = 0

    async def start(self, address: str, *, serving: bool = True) -> int:
        """Binds `address` (``host:port``, port 0 = any) and answers the bound port."""
        if self._identity is not None:
            self.port = self.server.add_secure_port(address, self._identity.server_credentials())
        else:
            self.port = self.server.add_insecure_port(address)
        await self.set_serving(serving)
        await self.server.start()
        return self.port

    async def set_serving(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, status)

    async def stop(self, grace_seconds: float) -> None:
        await self._health.enter_graceful_shutdown()
        await self.server.stop(grace_seconds)

"""Client channels between services, with one set of limits and keepalives."""

from __future__ import annotations

import json

import grpc

from services.common.grpc_server import MAX_MESSAGE_BYTES
from services.common.telemetry import client_interceptors

# gRPC itself repeats only what no server has seen; everything else is the caller's decision, since
# a command may have taken effect.
_SERVICE_CONFIG = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})

CHANNEL_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # How long one connection attempt may take (not a pause): on a busy machine 100 ms is too short.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.service_config", _SERVICE_CONFIG),
    ("grpc.enable_http_proxy", 0),
]


def open_channel(target: str) -> grpc.aio.Channel:
    """`target` is ``host:port`` or a gRPC target such as ``dns:///scheduler:7001``."""
    return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS, interceptors=client_interceptors())


def blocking_channel(target: str) -> grpc.Channel:
    """The same for programs that do one thing after the other, such as operators' commands."""
    return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)

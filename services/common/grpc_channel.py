"""Client channels between services, with one set of limits and keepalives."""

from __future__ import annotations

import json

import grpc

from services.common import mtls
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
    # Else a channel to a process that was just started at the address of a dead one would fail at once, in the pause
    # that the dead one's channel has earned, and who was about to use it would count a second loss.
    ("grpc.use_local_subchannel_pool", 1),
]


def open_channel(target: str, identity: mtls.Identity | None = None) -> grpc.aio.Channel:
    """`target` is ``host:port`` or a gRPC target such as ``dns:///scheduler:7001``.

    Speaks mutual TLS as `identity`, or the environment's when that sets one up. Raises InvalidInput when it is broken.
    """
    who = identity or mtls.identity()
    if who is None:
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS, interceptors=client_interceptors())
    options = [*CHANNEL_OPTIONS, *who.channel_options]
    return grpc.aio.secure_channel(
        target, who.channel_credentials(), options=options, interceptors=client_interceptors()
    )


def blocking_channel(target: str) -> grpc.Channel:
    """The same for programs that do one thing after the other, such as operators' commands."""
    who = mtls.identity()
    if who is None:
        return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(target, who.channel_credentials(), options=[*CHANNEL_OPTIONS, *who.channel_options])

"""The way to Redis: one asyncio client per process, bytes in and out, every wait bounded."""

from __future__ import annotations

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError as ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

Redis = redis.Redis
"""The client's type, for the modules that only pass it on."""

CONNECT_TIMEOUT_SECONDS = 3.0
REPLY_TIMEOUT_SECONDS = 10.0
HEALTH_CHECK_SECONDS = 15

OUTAGES = (RedisConnectionError, RedisTimeoutError)
"""What redis-py raises while the server is away; every function of this mesh may be repeated."""


def connect(url: str, *, max_connections: int = 64) -> Redis:
    """A client of ``redis://host:port/db``. It connects at first use and again after an outage.

    A call that meets an outage is tried twice more within half a second; each transition is
    idempotent by its own key, so a repeat after a lost reply changes nothing.
    """
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=REPLY_TIMEOUT_SECONDS,
        decode_responses=False,
        protocol=2,
        socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
        socket_timeout=REPLY_TIMEOUT_SECONDS,
        socket_keepalive=True,
        health_check_interval=HEALTH_CHECK_SECONDS,
        retry=Retry(ExponentialBackoff(cap=0.3, base=0.05), 2),
        retry_on_error=list(OUTAGES),
        client_name="tinkermesh-scheduler",
    )
    return Redis.from_pool(pool)

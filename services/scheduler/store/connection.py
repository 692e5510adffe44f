"""The way to Redis: one asyncio client per process, bytes in and out, every wait bounded.

A server, a primary found through sentinels, and a cluster look the same from here on, but for the
few commands that go to every node of a cluster: `on_each_node` and `server_now_ms` are for those.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import redis.asyncio as redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import ExponentialBackoff
from redis.exceptions import ClusterError, RedisClusterException
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError as ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from services.common.redis_url import RedisAddress, parse_redis_url

Redis = redis.Redis
"""The client's type, for the modules that only pass it on."""

CONNECT_TIMEOUT_SECONDS = 3.0
REPLY_TIMEOUT_SECONDS = 10.0
HEALTH_CHECK_SECONDS = 15
SCAN_COUNT = 500
# Sentinel and cluster clients raise instead of waiting for a free connection.
UNBOUNDED_CONNECTIONS = 1024

OUTAGES = (RedisConnectionError, RedisTimeoutError, ClusterError, RedisClusterException)
"""What redis-py raises while the server is away; every function of this mesh may be repeated."""


def connect(url: str, *, password_file: str = "", max_connections: int = 64) -> Redis:
    """A client of what `url` names (see redis_url.py). It connects at first use and again after an outage.

    A call that meets an outage is tried twice more within half a second; each transition is
    idempotent by its own key, so a repeat after a lost reply changes nothing. Raises InvalidInput.
    """
    address = parse_redis_url(url, password_file)
    if address.kind == "cluster":
        return _cluster(address)
    return _sentinel(address) if address.kind == "sentinel" else _server(address, max_connections)


def _server(address: RedisAddress, max_connections: int) -> Redis:
    host, port = address.hosts[0]
    kind = redis.SSLConnection if address.tls else redis.Connection
    tls = {name: value for name, value in address.tls.items() if name != "ssl"}
    options = {"host": host, "port": port, "db": address.db, **_account(address), **_options(), **tls}
    pool = redis.BlockingConnectionPool(
        max_connections=max_connections, timeout=REPLY_TIMEOUT_SECONDS, connection_class=kind, **options
    )
    return Redis.from_pool(pool)


def _sentinel(address: RedisAddress) -> Redis:
    """Asks the sentinels at each connect, and drops a connection whose server has become a replica."""
    own = {"username": address.sentinel_username, "password": address.sentinel_password}
    timeouts = {"socket_timeout": CONNECT_TIMEOUT_SECONDS, "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS}
    make: Any = Sentinel  # untyped in redis-py
    sentinels = make(address.hosts, sentinel_kwargs={**own, **timeouts, **address.tls})
    options = {"db": address.db, **_account(address), **_options(), **address.tls}
    found: Redis = sentinels.master_for(address.master, max_connections=UNBOUNDED_CONNECTIONS, **options)
    return found


def _cluster(address: RedisAddress) -> Redis:
    options: dict[str, Any] = {**_account(address), **_options(), **address.tls}
    nodes = [ClusterNode(host, port) for host, port in address.hosts]
    client = RedisCluster(startup_nodes=nodes, max_connections=UNBOUNDED_CONNECTIONS, **options)
    return cast("Redis", client)


def _account(address: RedisAddress) -> dict[str, Any]:
    return {"username": address.username, "password": address.password}


def _options() -> dict[str, Any]:
    return {
        "decode_responses": False,
        "protocol": 2,
        "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "socket_timeout": REPLY_TIMEOUT_SECONDS,
        "socket_keepalive": True,
        "health_check_interval": HEALTH_CHECK_SECONDS,
        "retry": Retry(ExponentialBackoff(cap=0.3, base=0.05), 2),
        "retry_on_error": [RedisConnectionError, RedisTimeoutError],
        "client_name": "tinkermesh-scheduler",
    }


def is_cluster(client: Redis) -> bool:
    return isinstance(client, RedisCluster)


async def on_each_node(client: Redis, command: str, *arguments: str) -> list[Any]:
    """The raw answers of every primary (of the one server, where there is no cluster)."""
    send = cast("Any", client)
    nodes = [{} if node is None else {"target_nodes": node} for node in await _nodes(client)]
    return [await send.execute_command(command, *arguments, **node) for node in nodes]


async def subscriber(client: Redis) -> Any:
    """A pub/sub connection; in a cluster to any node, since nodes pass on what is published."""
    return (await _known(client)).pubsub() if is_cluster(client) else cast("Any", client).pubsub()


async def server_now_ms(client: Redis) -> int:
    """Redis TIME, unix ms; of any node of a cluster."""
    send = cast("Any", client)
    if is_cluster(client):
        answers = await send.time(target_nodes=RedisCluster.RANDOM)
        seconds, micros = answers if isinstance(answers, tuple) else next(iter(answers.values()))
    else:
        seconds, micros = await send.time()
    return int(seconds) * 1000 + int(micros) // 1000


async def scan_keys(client: Redis, cursor: int, pattern: str, count: int) -> tuple[int, list[bytes]]:
    """One step of SCAN over the keys that match; all have the same hash tag, so they lie on one node."""
    node = await _node_of(client, pattern) if is_cluster(client) else None
    return await _scan_step(client, cursor, pattern, count, node)


async def scan_everywhere(client: Redis, pattern: str) -> AsyncIterator[list[bytes]]:
    """All keys that match, on every node, in portions; a key that stays is met at least once."""
    for node in await _nodes(client):
        async for names in _scan(client, pattern, node):
            yield names


async def scan_pool(client: Redis, pattern: str) -> AsyncIterator[list[bytes]]:
    """The same of keys that all have the hash tag of `pattern`: on the node where they lie."""
    async for names in _scan(client, pattern, await _node_of(client, pattern) if is_cluster(client) else None):
        yield names


async def _scan(client: Redis, pattern: str, node: Any) -> AsyncIterator[list[bytes]]:
    cursor = 0
    while True:
        cursor, names = await _scan_step(client, cursor, pattern, SCAN_COUNT, node)
        yield names
        if cursor == 0:
            return


async def _scan_step(client: Redis, cursor: int, pattern: str, count: int, node: Any) -> tuple[int, list[bytes]]:
    send = cast("Any", client)
    if node is None:
        cursor, names = await send.scan(cursor, match=pattern, count=count)
        return int(cursor), names
    cursors, names = await send.scan(cursor, match=pattern, count=count, target_nodes=node)
    return int(next(iter(cursors.values()))), names


async def _nodes(client: Redis) -> list[Any]:
    """The primaries of a cluster; [None] for one server."""
    if not is_cluster(client):
        return [None]
    return list((await _known(client)).get_primaries())


async def _node_of(client: Redis, key: str) -> Any:
    return (await _known(client)).get_node_from_key(key)


async def _known(client: Redis) -> Any:
    """The cluster's client, once it has asked for the nodes."""
    send = cast("Any", client)
    if send.get_default_node() is None:
        await send.initialize()
    return send

"""Which blocks are in a tier, in Redis: entered when their file is complete.

    tm:{p:<pool>}:kv:<scope>           zset key -> when it was entered, unix ms
    tm:{p:<pool>}:kv:<scope>:whole     there while the zset has every block of the directory

The directory holds the truth. A Redis that lost everything lost `whole` too, and is told again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from services.common.clock import now_ms
from services.common.errors import Unavailable
from services.common.redis_url import RedisAddress
from services.sampler import kv_metrics

_BATCH = 2000
_FAST = 0.5
"""Seconds for a connection, and for a reply: a leg's own wait is the one that tries again."""

T = TypeVar("T")


class CatalogAway(Unavailable):
    """The catalog did not answer in time."""


class Catalog:
    """Used by several threads. Every call raises CatalogAway within two `_FAST` of an outage."""

    def __init__(self, address: RedisAddress, pool: str, scope: str) -> None:
        self._address = address
        self._redis: Any = None
        self._name = f"tm:{{p:{pool}}}:kv:{scope}"
        self._whole = f"{self._name}:whole"

    def add(self, keys: Iterable[str]) -> None:
        stamp = now_ms()
        for part in _parts(keys):
            scores = dict.fromkeys(part, stamp)
            self._call(partial(self._send, "zadd", self._name, scores))

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Those of `keys` that are not entered, in their order."""
        if not keys:
            return []
        scores = self._call(partial(self._send, "zmscore", self._name, keys))
        return [key for key, score in zip(keys, scores, strict=True) if score is None]

    def remove(self, keys: Iterable[str]) -> None:
        for part in _parts(keys):
            self._call(partial(self._send, "zrem", self._name, *part))

    def count(self) -> int:
        return int(self._call(partial(self._send, "zcard", self._name)))

    def is_whole(self) -> bool:
        return bool(self._call(partial(self._send, "exists", self._whole)))

    def mark_whole(self) -> None:
        self._call(partial(self._send, "set", self._whole, str(now_ms())))

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()

    def _send(self, command: str, *arguments: Any) -> Any:
        if self._redis is None:
            self._redis = connect(self._address)
        return getattr(self._redis, command)(*arguments)

    def _call(self, work: Callable[[], T]) -> T:
        try:
            with kv_metrics.catalog_call():
                return work()
        except (RedisError, OSError) as error:
            raise CatalogAway(f"stage kv catalog: Redis does not answer ({type(error).__name__}); retry") from None


def _parts(keys: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(keys)
    while part := list(islice(rest, _BATCH)):
        yield part


def connect(address: RedisAddress) -> Any:
    """A synchronous client that waits briefly and repeats a call once; a cluster's asks for its nodes at once."""
    options: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "decode_responses": False,
        "socket_connect_timeout": _FAST,
        "socket_timeout": _FAST,
        "client_name": "tinkermesh-sampler",
        **address.tls,
    }
    if address.kind == "cluster":
        node: Any = ClusterNode  # untyped in redis-py
        return RedisCluster(startup_nodes=[node(host, port) for host, port in address.hosts], **options)
    options |= {"db": address.db, "retry": Retry(NoBackoff(), 1)}
    if address.kind == "sentinel":
        own = {"username": address.sentinel_username, "password": address.sentinel_password}
        timeouts = {"socket_timeout": _FAST, "socket_connect_timeout": _FAST}
        make: Any = Sentinel  # untyped in redis-py
        return make(address.hosts, sentinel_kwargs={**own, **timeouts, **address.tls}).master_for(
            address.master, **options
        )
    host, port = address.hosts[0]
    return redis.Redis(host=host, port=port, **options)

"""What Redis must be before any work is accepted on it: version, eviction, persistence, room."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from services.common.errors import InvalidInput
from services.scheduler.store.connection import Redis, ResponseError, is_cluster, on_each_node
from services.scheduler.store.durability import RELAX, Confirmation, Durability, check_waitaof, confirmation
from services.scheduler.store.outages import reaching_redis

log = logging.getLogger(__name__)

OLDEST_MAJOR = 7


async def check_redis(redis: Redis, durability: Durability, replicas: int = 0) -> Confirmation | None:
    """How writes are to be confirmed there; every node of a cluster is checked.

    Raises InvalidInput naming the setting of Redis and the remedy, Unavailable.
    """
    with reaching_redis():
        for info in await on_each_node(redis, "INFO", "server"):
            check_version(str(info["redis_version"]))
        settings = [await redis_settings(redis, pattern) for pattern in ("maxmemory*", "*append*")]
        waitaof = await has_waitaof(redis)
    if settings[0] is None or settings[1] is None:
        log.warning("this Redis hides its settings; its persistence and eviction cannot be checked")
        return Confirmation(False, replicas) if replicas else None
    for node in settings[0]:
        _check_eviction(node)
    found = [confirmation(node, durability, replicas=replicas, waitaof=waitaof) for node in settings[1]]
    strictest = max((wait for wait in found if wait is not None), default=None)
    if strictest is not None and strictest.sync:
        await check_trusted(redis)
    return strictest


async def check_trusted(redis: Redis) -> None:
    """Of a server whose WAITAOF is to vouch for the disk. Raises InvalidInput."""
    if is_cluster(redis):
        raise InvalidInput(f"this cluster has nodes with appendfsync everysec: set appendfsync always on each, {RELAX}")
    with reaching_redis():
        await check_waitaof(redis)


def check_version(version: str) -> None:
    """Raises InvalidInput."""
    if int(version.split(".")[0]) < OLDEST_MAJOR:
        raise InvalidInput(f"Redis {version} has no functions: use Redis 7 or newer, or Valkey")


async def redis_settings(redis: Redis, pattern: str) -> list[Mapping[str, str]] | None:
    """Of each node; None where CONFIG is forbidden, as with some hosted servers."""
    try:
        answers = await on_each_node(redis, "CONFIG GET", pattern)
    except ResponseError:
        return None
    return [_texts(answer) for answer in answers]


async def has_waitaof(redis: Redis) -> bool:
    answers = await on_each_node(redis, "COMMAND INFO", "waitaof")
    return all(any(answer.values()) if isinstance(answer, dict) else any(answer) for answer in answers)


def _check_eviction(settings: Mapping[str, str]) -> None:
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        raise InvalidInput(
            f"Redis has maxmemory-policy {policy}: it would evict accepted work; set maxmemory-policy noeviction"
        )
    if settings.get("maxmemory", "0") == "0":
        log.warning(
            "Redis has no maxmemory: set one, so that new work is refused before the machine runs out of memory"
        )


def _texts(answer: Any) -> dict[str, str]:
    pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
    return {_text(name): _text(value) for name, value in pairs}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

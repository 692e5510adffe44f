"""What Redis must be before any work is accepted on it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from services.common.errors import InvalidInput
from services.scheduler.store.connection import Redis, ResponseError
from services.scheduler.store.outages import reaching_redis

log = logging.getLogger(__name__)

OLDEST_MAJOR = 7
RELAX = "or set TINKERMESH_SCHEDULER_DURABILITY=relaxed and accept that a crash of Redis may lose accepted work"


async def check_redis(redis: Redis, *, strict: bool) -> None:
    """Raises InvalidInput naming the setting of Redis and the remedy, Unavailable."""
    client = cast("Any", redis)
    with reaching_redis():
        version = str((await client.info("server"))["redis_version"])
        settings = await _settings(client)
    if int(version.split(".")[0]) < OLDEST_MAJOR:
        raise InvalidInput(f"Redis {version} has no functions: use Redis 7 or newer, or Valkey")
    if settings is None:
        log.warning("this Redis hides its settings; its persistence and eviction cannot be checked")
        return
    _check_eviction(settings)
    if strict:
        _check_persistence(settings)


async def _settings(client: Any) -> Mapping[str, str] | None:
    """None where CONFIG is forbidden, as with some hosted servers."""
    try:
        raw = {**await client.config_get("maxmemory-policy"), **await client.config_get("append*")}
    except ResponseError:
        return None
    return {_text(name): _text(value) for name, value in raw.items()}


def _check_eviction(settings: Mapping[str, str]) -> None:
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        raise InvalidInput(
            f"Redis has maxmemory-policy {policy}: it would evict accepted work; set maxmemory-policy noeviction"
        )


def _check_persistence(settings: Mapping[str, str]) -> None:
    if settings.get("appendonly") != "yes":
        raise InvalidInput(f"Redis has appendonly no: set appendonly yes and appendfsync always, {RELAX}")
    if settings.get("appendfsync") != "always":
        raise InvalidInput(f"Redis has appendfsync {settings.get('appendfsync')}: set appendfsync always, {RELAX}")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

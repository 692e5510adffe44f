"""``python -m services.scheduler.doctor``: whether Redis is what a scheduler needs; findings as JSON on stdout.

Reads the scheduler's own variables, changes nothing in Redis but a key that ends by itself (the WAITAOF check of
`everysec` servers), and looks at every node of a cluster.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from services.common.clock import now_ms
from services.common.errors import InvalidInput, Unavailable
from services.common.findings import Finding, error, note, ok, warning
from services.common.redis_url import parse_redis_url
from services.common.settings import from_environment
from services.scheduler.startup_checks import check_trusted, check_version, has_waitaof, redis_settings
from services.scheduler.store import keys
from services.scheduler.store.connection import Redis, ResponseError, connect, on_each_node, server_now_ms
from services.scheduler.store.durability import Durability, confirmation
from services.scheduler.store.functions import LAYOUT, library
from services.scheduler.store.libraries import ALIVE_MS
from services.scheduler.store.outages import reaching_redis

SKEW_WARNING_MS = 1_000
SKEW_ERROR_MS = 30_000
CLOCKS = "let NTP (chrony, systemd-timesyncd) set both machines' clocks: links, keys and lifetimes end by them"
Info = Mapping[str, Any]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Those of services/scheduler/settings.py that are about Redis."""

    redis_url: str = "redis://127.0.0.1:7000/0"
    redis_password_file: str = ""
    redis_replicas: int = 0
    redis_high_water: float = 0.85
    durability: Durability = "strict"


async def diagnose(settings: Settings, clock: Callable[[], int] = now_ms) -> list[Finding]:
    """`clock`: this machine's time, unix ms. A server that does not answer is a finding, too."""
    try:
        where = str(parse_redis_url(settings.redis_url, settings.redis_password_file))
        redis = connect(settings.redis_url, password_file=settings.redis_password_file)
    except InvalidInput as wrong:
        return [
            error("redis", wrong.message, "correct TINKERMESH_SCHEDULER_REDIS_URL (docs/recovery.md has its forms)")
        ]
    try:
        with reaching_redis():
            return await _reached(redis, where, settings, clock)
    except (Unavailable, OSError) as away:
        return [
            error("redis", f"{where}: {away}", "start Redis, or correct the address, its TLS and the NetworkPolicy")
        ]
    except ResponseError as refused:
        account = "correct user and password, or give the account the commands INFO, CONFIG GET, FUNCTION and FCALL"
        return [error("redis", f"{where} refuses this client: {str(refused)[:200]}", account)]
    finally:
        await redis.aclose()


async def _reached(redis: Redis, where: str, settings: Settings, clock: Callable[[], int]) -> list[Finding]:
    before = clock()
    server = await server_now_ms(redis)
    after = clock()
    infos = [dict(info) for info in await on_each_node(redis, "INFO")]
    return [
        *(_version(info, where) for info in infos),
        *await _configured(redis, infos, settings),
        *(finding for info in infos for finding in _state(info, settings)),
        await _libraries(redis),
        _clock(server, before, after),
    ]


def _version(info: Info, where: str) -> Finding:
    version = str(info.get("valkey_version") or info["redis_version"])
    try:
        check_version(str(info["redis_version"]))
    except InvalidInput as wrong:
        return error("redis version", wrong.message, "upgrade it: the mesh's transitions are Redis Functions")
    return ok("redis version", f"{where} is {info.get('server_name', 'redis')} {version}")


async def _configured(redis: Redis, infos: Sequence[Info], settings: Settings) -> list[Finding]:
    memory = await redis_settings(redis, "maxmemory*")
    appending = await redis_settings(redis, "*append*")
    if memory is None or appending is None:
        hidden = "see to it by its provider's means: maxmemory-policy noeviction, appendonly yes, appendfsync always"
        return [warning("redis settings", "this Redis hides its settings: they cannot be checked", hidden)]
    waitaof = await has_waitaof(redis)
    return [
        *(_eviction(node) for node in memory),
        *(_limit(node, info, settings) for node, info in zip(memory, infos, strict=True)),
        *[await _persistence(redis, node, settings, waitaof=waitaof) for node in appending],
    ]


def _eviction(node: Mapping[str, str]) -> Finding:
    policy = node.get("maxmemory-policy", "noeviction")
    if policy == "noeviction":
        return ok("redis eviction", "nothing is evicted")
    told = "CONFIG SET maxmemory-policy noeviction, and in its configuration file; the scheduler refuses to start so"
    return error("redis eviction", f"maxmemory-policy is {policy}: it would evict accepted work", told)


def _limit(node: Mapping[str, str], info: Info, settings: Settings) -> Finding:
    limit, used = int(node.get("maxmemory", 0)), int(info["used_memory"])
    if not limit:
        some = "set maxmemory (--redis-memory of tinkermesh up), so that new work waits before the machine is full"
        return note("redis memory", f"{used >> 20} MiB used, no maxmemory", some)
    text = f"{used >> 20} of {limit >> 20} MiB used"
    if used > settings.redis_high_water * limit:
        return error(
            "redis memory", f"{text}: new payloads are refused", "raise maxmemory, or let queues and results drain"
        )
    return ok("redis memory", text)


async def _persistence(redis: Redis, node: Mapping[str, str], settings: Settings, *, waitaof: bool) -> Finding:
    try:
        wait = confirmation(node, settings.durability, replicas=settings.redis_replicas, waitaof=waitaof)
        if wait is not None and wait.sync:
            await check_trusted(redis)
    except InvalidInput as wrong:
        text, _, remedy = wrong.message.partition(": ")
        return error("redis persistence", f"{text}, and durability is {settings.durability}", remedy)
    files = f"appendonly {node.get('appendonly')}, appendfsync {node.get('appendfsync')}"
    if settings.durability == "off":
        return note("redis persistence", f"{files}; durability is off: an outage of Redis loses accepted work")
    return ok("redis persistence", f"{files}, as durability {settings.durability} needs it")


def _state(info: Info, settings: Settings) -> list[Finding]:
    """Only what is wrong."""
    found = []
    if str(info.get("role")) == "slave":
        found.append(error("redis role", "this is a replica: it takes no writes", "name its primary, or the sentinels"))
    if str(info.get("aof_last_write_status", "ok")) != "ok":
        found.append(error("redis file", "the last write of the append-only file failed", "free its disk; see its log"))
    if str(info.get("aof_last_bgrewrite_status", "ok")) != "ok":
        found.append(
            warning("redis file", "the last rewrite of the append-only file failed", "free its disk and memory")
        )
    if (replicas := int(info.get("connected_slaves", 0))) < settings.redis_replicas:
        short = f"{replicas} replicas are connected, each write waits for {settings.redis_replicas}"
        found.append(error("redis replicas", short, "start the missing replicas, or lower redis_replicas"))
    return found


async def _libraries(redis: Redis) -> Finding:
    """Which releases work here: the layout in force, and the function library of every live replica."""
    send = cast("Any", redis)
    mine, held = library().name, int(await send.get(keys.LAYOUT) or 0)
    if held > LAYOUT:
        newer = f"a newer release has written layout {held}; this one knows up to {LAYOUT}"
        return error("function library", newer, "use the tinkermesh of that release or a later one")
    now = await server_now_ms(redis)
    entries = {name.decode(): msgspec.json.decode(row) for name, row in (await send.hgetall(keys.REPLICAS)).items()}
    alive = {name: row for name, row in entries.items() if now - row["seen_ms"] <= ALIVE_MS}
    others = sorted(name for name, row in alive.items() if row["library"] != mine)
    if others:
        text = f"{', '.join(others[:5])} of {len(alive)} live replicas use another release's functions, not {mine}"
        return warning("function library", text, "finish the rollout: restart the old schedulers with this release")
    if alive:
        return ok("function library", f"{len(alive)} live replicas, all with {mine}")
    return note("function library", "no scheduler works on this Redis now")


def _clock(server_ms: int, before_ms: int, after_ms: int) -> Finding:
    """Redis' time must lie between two readings of ours; what is missing is skew."""
    skew = max(before_ms - server_ms, server_ms - after_ms, 0)
    text = f"Redis and this machine are {skew / 1000:.1f} s apart"
    if skew > SKEW_ERROR_MS:
        return error("clock", text, CLOCKS)
    return warning("clock", text, CLOCKS) if skew > SKEW_WARNING_MS else ok("clock", text)


def main() -> int:
    try:
        settings = from_environment(Settings, "scheduler", os.environ)
        found = asyncio.run(diagnose(settings))
    except InvalidInput as wrong:
        found = [error("redis", wrong.message, "correct the variable")]
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

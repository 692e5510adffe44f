"""What an answer of the mesh means about the disk, and what Redis must be for it.

strict    an answered write is on disk: ``appendfsync always``; or ``everysec`` on a server whose
          WAITAOF can be trusted, where each call waits until its write has been synced
everysec  an answered write is in the file, and on disk within two seconds
off       nothing is promised: for benchmarks
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from services.common.errors import InvalidInput
from services.scheduler.store import keys
from services.scheduler.store.connection import Redis

Durability = Literal["strict", "everysec", "off"]
WAIT_MS = 2_000
HONEST_WAITS = 3
HONEST_SECONDS = 0.9
RELAX = "or set TINKERMESH_SCHEDULER_DURABILITY=everysec (or off) and accept what a crash may lose (docs/recovery.md)"


class Confirmation(NamedTuple):
    """What is waited for after each write: this server's own sync (WAITAOF), so many replicas (WAIT)."""

    sync: bool
    replicas: int
    timeout_ms: int = WAIT_MS

    @property
    def commands(self) -> list[tuple[str | int, ...]]:
        synced: list[tuple[str | int, ...]] = [("WAITAOF", 1, 0, self.timeout_ms)] if self.sync else []
        return [*synced, *([("WAIT", self.replicas, self.timeout_ms)] if self.replicas else [])]

    def missing(self, answers: Sequence[Any]) -> str:
        """What the answers to `commands` lack; "" = nothing."""
        if self.sync and int(answers[0][0]) < 1:
            return "on disk"
        if self.replicas and int(answers[-1]) < self.replicas:
            return f"on {self.replicas} replicas"
        return ""


def confirmation(
    settings: Mapping[str, str], durability: Durability, *, replicas: int, waitaof: bool
) -> Confirmation | None:
    """How writes are confirmed on a server of these settings; None = its answer alone is enough.

    Raises InvalidInput naming the setting of Redis and the remedy.
    """
    if durability == "off":
        return None
    if settings.get("appendonly") != "yes":
        raise InvalidInput(
            f"Redis has appendonly no: set appendonly yes and appendfsync {_wanted(durability)}, {RELAX}"
        )
    policy = settings.get("appendfsync", "")
    if policy == "no":
        raise InvalidInput(f"Redis has appendfsync no: set appendfsync {_wanted(durability)}, {RELAX}")
    sync = durability == "strict" and _needs_waitaof(settings, policy, waitaof=waitaof)
    return Confirmation(sync, replicas) if sync or replicas else None


def _needs_waitaof(settings: Mapping[str, str], policy: str, *, waitaof: bool) -> bool:
    if settings.get("no-appendfsync-on-rewrite") == "yes":
        raise InvalidInput(
            f"Redis has no-appendfsync-on-rewrite yes, which stops syncing for a while: set it to no, {RELAX}"
        )
    if policy != "always" and not waitaof:
        raise InvalidInput(f"Redis has appendfsync {policy} and no WAITAOF: set appendfsync always, {RELAX}")
    return policy != "always"


def _wanted(durability: Durability) -> str:
    return "always" if durability == "strict" else "everysec"


async def check_waitaof(redis: Redis) -> None:
    """Whether WAITAOF under everysec waits for the sync. Raises InvalidInput when it does not.

    Servers that carry a known fault (Redis 7.2.2 to 7.4.2, Valkey up to 9.1 at least) answer at once,
    before the sync. One that waits takes a second from the first of these waits to the last, since it
    syncs once a second.
    """
    began = time.monotonic()
    for _ in range(HONEST_WAITS):
        pipe: Any = redis.pipeline(transaction=False)
        pipe.set(keys.PROBE, b"", ex=60)
        pipe.execute_command("WAITAOF", 1, 0, WAIT_MS)
        await pipe.execute()
    if time.monotonic() - began < HONEST_SECONDS:
        raise InvalidInput(
            f"Redis has appendfsync everysec, and its WAITAOF answers before the disk has the write: "
            f"set appendfsync always, {RELAX}"
        )

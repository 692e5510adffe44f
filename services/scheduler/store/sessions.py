"""Sessions in Redis: rows, the directory of their children, and the control plane's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from redis.asyncio import Redis

from services.common.errors import Forbidden, UnknownId
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis

Children = Literal["models", "samplers"]
_ROW = ("tenant", "state", "beat_ms", "sdk_version", "end_reason")


class Tick(NamedTuple):
    sweeps: bool  # this replica looks for dead sessions now
    now_ms: int
    credited_ms: int  # every lease just got this much back


@dataclass(frozen=True, slots=True)
class SessionRow:
    session_id: str
    tenant_id: str
    state: str
    beat_ms: int
    sdk_version: str
    end_reason: str


class Place(NamedTuple):
    """Of a session among all: by its last sign (beat plus credit), and by its id where those are the same."""

    seen_ms: int
    session_id: str


class SessionStore:
    def __init__(self, redis: Redis, functions: Functions) -> None:
        self._redis = cast("Any", redis)
        self._call = functions.call

    async def admit(self, tenant_id: str, key_hash: str, proposed: str, keep_ms: int, limit: int) -> str:
        """The session id this (tenant, idempotency key) made; `proposed` becomes it when there is none.

        `key_hash` "" = no key. Raises Busy when `limit` sessions are open (0 = no limit).
        """
        names = [keys.tenant_sessions(tenant_id), keys.session_key(tenant_id, key_hash)]
        held = await self._call("tenant_session", names, proposed, keep_ms if key_hash else 0, limit)
        return cast("bytes", held).decode()

    async def create(self, session_id: str, tenant_id: str, fields: Mapping[str, str]) -> int:
        """When it was created or found again, unix ms."""
        flat = [part for item in fields.items() for part in item]
        now = await self._call("session_create", [keys.session_prefix(session_id)], tenant_id, *flat)
        await self._index(session_id, int(now))
        return int(now)

    async def beat(self, session_id: str, tenant_id: str) -> None:
        """Raises Gone, Forbidden."""
        now = await self._call("session_beat", [keys.session_prefix(session_id)], tenant_id)
        await self._index(session_id, int(now))

    async def claim(self, session_id: str, tenant_id: str, children: Children, seq_id: int, value: str) -> str:
        """Write-once: the value that holds under `seq_id`. Raises Gone, Forbidden, UnknownId (ended)."""
        held = await self._call(
            "session_claim", [keys.session_prefix(session_id)], children, tenant_id, str(seq_id), value
        )
        return cast("bytes", held).decode()

    async def child(self, session_id: str, children: Children, seq_id: int) -> str | None:
        with reaching_redis():
            held = await self._redis.hget(f"{keys.session_prefix(session_id)}:{children}", str(seq_id))
        return None if held is None else held.decode()

    async def children(self, session_id: str, children: Children) -> list[str]:
        """Pools of a session's models, or its sampling session ids; each once."""
        with reaching_redis():
            values = await self._redis.hvals(f"{keys.session_prefix(session_id)}:{children}")
        return sorted({value.decode() for value in values})

    async def finish(self, session_id: str, tenant_id: str, detail: str) -> str:
        """The state before. Until it is `forget`-ten, a sweeper completes what this replica may not."""
        before = await self._call("session_finish", [keys.session_prefix(session_id)], tenant_id, detail)
        with reaching_redis():
            await self._redis.zadd(keys.SESSIONS, {session_id: 0})
        return cast("bytes", before).decode()

    async def expire(self, session_id: str, last_beat_ms: int, reason: str) -> tuple[str, int]:
        """(state now, latest beat): ``open`` when it has beaten after `last_beat_ms`."""
        state, beat = await self._call("session_expire", [keys.session_prefix(session_id)], str(last_beat_ms), reason)
        return cast("bytes", state).decode(), int(beat)

    async def silent_since(self, before_ms: int, limit: int) -> list[tuple[str, int]]:
        """(session id, last beat plus credit) of sessions whose last sign lies before `before_ms`."""
        with reaching_redis():
            found = await self._redis.zrange(
                keys.SESSIONS, "-inf", f"({before_ms}", byscore=True, offset=0, num=limit, withscores=True
            )
        return [(name.decode(), int(score)) for name, score in cast("Sequence[tuple[bytes, float]]", found)]

    async def beat_again(self, session_id: str, beat_ms: int) -> None:
        await self._index(session_id, beat_ms)

    async def forget(self, session_id: str, keep_ms: int) -> None:
        """All children are closed: the session leaves the index; its rows stay `keep_ms` longer."""
        await self._call("session_retire", [keys.session_prefix(session_id)], keep_ms)
        with reaching_redis():
            await self._redis.zrem(keys.SESSIONS, session_id)

    async def tick(self, replica: str, *, front: bool, silence_ms: int, outage_ms: int, grace_ms: int) -> Tick:
        sweeps, now, credit = await self._call(
            "session_tick", [keys.CLOCK, keys.SESSIONS], replica, int(front), silence_ms, outage_ms, grace_ms
        )
        return Tick(bool(sweeps), int(now), int(credit))

    async def stop_sweeping(self, replica: str) -> None:
        await self._call("session_stop_sweeping", [keys.CLOCK], replica)

    async def row(self, session_id: str) -> SessionRow | None:
        with reaching_redis():
            values = await self._redis.hmget(keys.session(session_id), _ROW)
        return None if values[0] is None else _row(session_id, values)

    async def states(self, session_ids: Sequence[str]) -> list[str]:
        """In their order, in one round trip; "" = there is no such session."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for session_id in session_ids:
                pipe.hget(keys.session(session_id), "state")
            found = await pipe.execute() if session_ids else []
        return [(state or b"").decode() for state in found]

    async def owned(self, session_id: str, tenant_id: str) -> SessionRow:
        """Raises UnknownId, Forbidden."""
        row = await self.row(session_id)
        if row is None:
            raise UnknownId(f"session_id {session_id[:64]!r} is not known, or expired long ago; create a new session")
        if row.tenant_id != tenant_id:
            raise Forbidden(f"session_id {session_id} belongs to another tenant")
        return row

    async def page(self, after: Place | None, limit: int) -> list[Place]:
        """Indexed sessions behind `after`, the latest sign first; None = from the latest on.

        One that beats while its reader turns pages moves to the front, where it may be missed.
        """
        with reaching_redis():
            if after is None:
                found = await self._redis.zrange(keys.SESSIONS, 0, limit - 1, desc=True, withscores=True)
            else:
                ties = await self._redis.zcount(keys.SESSIONS, after.seen_ms, after.seen_ms)
                found = await self._redis.zrange(
                    keys.SESSIONS,
                    after.seen_ms,
                    "-inf",
                    desc=True,
                    byscore=True,
                    offset=0,
                    num=limit + ties,
                    withscores=True,
                )
        places = (Place(int(score), name.decode()) for name, score in found)
        return [place for place in places if after is None or place < after][:limit]

    async def soonest(self, after: Place | None, limit: int) -> list[Place]:
        """The other way round: the longest silent first."""
        first = "-inf" if after is None else after.seen_ms
        with reaching_redis():
            ties = 0 if after is None else await self._redis.zcount(keys.SESSIONS, after.seen_ms, after.seen_ms)
            found = await self._redis.zrange(
                keys.SESSIONS, first, "+inf", byscore=True, offset=0, num=limit + ties, withscores=True
            )
        places = (Place(int(score), name.decode()) for name, score in found)
        return [place for place in places if after is None or place > after][:limit]

    async def rows(self, session_ids: Sequence[str]) -> list[tuple[SessionRow, list[int]]]:
        """With their models' numbers, in order and in one round trip; what is gone is left out."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for session_id in session_ids:
                pipe.hmget(keys.session(session_id), _ROW)
                pipe.hkeys(keys.session_models(session_id))
            found = await pipe.execute() if session_ids else []
        rows = zip(session_ids, found[::2], found[1::2], strict=True)
        return [(_row(name, row), sorted(int(n) for n in models)) for name, row, models in rows if row[0] is not None]

    async def _index(self, session_id: str, beat_ms: int) -> None:
        with reaching_redis():
            await self._redis.zadd(keys.SESSIONS, {session_id: beat_ms}, gt=True)


def _row(session_id: str, values: Sequence[bytes | None]) -> SessionRow:
    tenant, state, beat, version, reason = ((value or b"").decode() for value in values)
    return SessionRow(session_id, tenant, state, int(beat or 0), version, reason)

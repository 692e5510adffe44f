"""The consistency check of what lies in Redis: queues, rows, payloads, units, indexes, usage, sessions.

It runs beside a working mesh: every repair is one function that looks again before it writes
(functions/check.lua). What only counts as wrong while nobody works is checked when nobody does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from services.common.cells import cell_suffix
from services.common.errors import ContractViolation
from services.scheduler.store import keys
from services.scheduler.store.cells import known_cells
from services.scheduler.store.connection import Redis, scan_everywhere, scan_pool
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis
from services.scheduler.store.payloads import BLOB_PREFIX, BlobStore

BATCH = 200
_ROW = ("tenant", "state", "kind", "charged", "kept", "upload", "result_upload")
_ZSETS = ("gaps", "closed", "expiring", "samples", "samples_settled")
_ZSETS_OF_A_CELL = ("active", "creates", "seekers", "recovering", "unseated", "durables")


Alone = Callable[[], Awaitable[bool]]
"""Whether no other replica is alive now."""


class Finding(NamedTuple):
    """`subject` is the name of what was damaged; docs/recovery.md says what is done in each class."""

    kind: str
    subject: str


@dataclass(slots=True)
class _Seen:
    """What one walk over a pool's rows and models has counted, each once: SCAN may name a key more than once."""

    names: set[str] = field(default_factory=set)
    uploads: set[str] = field(default_factory=set)
    blobs: dict[str, str] = field(default_factory=dict)  # request key -> blob of an unsettled command
    usage: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


class ConsistencyCheck:
    """`retention_ms`: how long the future of a command that fails here is kept, as of any other."""

    def __init__(self, redis: Redis, functions: Functions, blobs: BlobStore, *, retention_ms: int) -> None:
        self._redis = cast("Any", redis)
        self._call = functions.call
        self._blobs = blobs
        self._retention_ms = retention_ms

    async def pool(self, pool: str, *, alone: Alone) -> list[Finding]:
        """Where nobody else works, what tenants use is counted, too. Raises Unavailable."""
        prefix = f"{keys.pool_prefix(pool)}:"
        # Payloads first: one that is accepted meanwhile has its row by the time the rows are read.
        kept = [name async for batch in self._names(pool, "pay:*") for name in await self._without_ttl(batch)]
        seen, found = _Seen(), []
        async for names in self._names(pool, "*"):
            texts = [name.removeprefix(prefix) for name in names if name not in seen.names]
            seen.names.update(names)
            found += await self._rows(pool, _of(texts, "req:"), seen)
            found += await self._models(pool, _of(texts, "model:"), seen)
            found += await self._repair(pool, "check_units", _of(texts, "unit:"))
            found += await self._outputs(pool, _of(texts, "out:"))
        found += await self._repair(pool, "check_units", [], always=True)
        found += await self._lost_blobs(pool, seen)
        found += await self._orphans(kept, seen)
        found += await self._indexes(pool)
        if await alone():  # asked behind the walk: who has come meanwhile may have changed what was counted
            found += await self._usage(pool, seen)
        return found

    async def _names(self, pool: str, rest: str) -> AsyncIterator[list[str]]:
        async for names in scan_pool(self._redis, f"{keys.pool_prefix(pool)}:{rest}"):
            if names:
                yield [name.decode() for name in names]

    async def _repair(
        self, pool: str, function: str, names: Sequence[str], *first: str, always: bool = False
    ) -> list[Finding]:
        found: list[Finding] = []
        for at in range(0, len(names) or int(always), BATCH):
            found += _findings(await self._checked(function, pool, *first, *names[at : at + BATCH]))
        return found

    async def _checked(self, function: str, pool: str, *arguments: str) -> list[str]:
        flat = await self._call(function, [keys.pool_prefix(pool)], self._retention_ms, *arguments)
        return [part.decode() for part in flat]

    async def _rows(self, pool: str, row_keys: list[str], seen: _Seen) -> list[Finding]:
        found = await self._repair(pool, "check_rows", row_keys)
        for key, row in zip(row_keys, await self._fields([keys.req(pool, k) for k in row_keys], _ROW), strict=True):
            tenant, state, kind, charged, kept, upload, result_upload = row
            seen.uploads |= {upload, result_upload}
            open_ = state not in ("done", "failed")
            if open_ and upload.startswith(BLOB_PREFIX):
                seen.blobs[key] = upload
            if kept:
                seen.usage[tenant].update(results=int(kept))
            if open_ and charged:
                seen.usage[tenant].update(open=1, bytes=int(charged), samples=int(kind == "sample"))
        return found

    async def _models(self, pool: str, model_ids: list[str], seen: _Seen) -> list[Finding]:
        for tenant, counted in await self._fields([keys.model(pool, m) for m in model_ids], ("tenant", "counted")):
            seen.usage[tenant].update(models=int(counted or 0))
        found = []
        for model_id, queued, logged in await self._lengths(pool, model_ids):
            found += await self._queue(pool, model_id) if queued else []
            found += await self._log(pool, model_id) if logged else []
        return found + await self._repair(pool, "check_models", model_ids)

    async def _lengths(self, pool: str, model_ids: list[str]) -> list[tuple[str, int, int]]:
        """(model, commands in its queue, entries of its log)."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for model_id in model_ids:
                pipe.hlen(keys.queue(pool, model_id))
                pipe.llen(keys.log(pool, model_id))
            found = await pipe.execute() if model_ids else []
        return list(zip(model_ids, found[::2], found[1::2], strict=True))

    async def _queue(self, pool: str, model_id: str) -> list[Finding]:
        with reaching_redis():
            scan = self._redis.hscan_iter(keys.queue(pool, model_id), count=BATCH)
            seqs = [seq.decode() async for seq, _ in scan]
        return await self._repair(pool, "check_queue", seqs, model_id)

    async def _log(self, pool: str, model_id: str) -> list[Finding]:
        """In portions: a log may hold thousands of commands, and nobody else is served while one is looked at."""
        found: list[Finding] = []
        position = ""
        while True:
            position, *texts = await self._checked("check_log", pool, model_id, position, str(BATCH))
            found += _findings(texts)
            if not position:
                return found

    async def _outputs(self, pool: str, row_keys: list[str]) -> list[Finding]:
        rows = await self._fields([keys.req(pool, key) for key in row_keys], ("request_id",))
        lost = [keys.outputs(pool, key) for key, row in zip(row_keys, rows, strict=True) if not row[0]]
        return await self._drop("output_without_row", lost)

    async def _orphans(self, kept: list[str], seen: _Seen) -> list[Finding]:
        return await self._drop(
            "payload_without_row", [name for name in kept if name.split(":")[-2] not in seen.uploads]
        )

    async def _drop(self, kind: str, names: list[str]) -> list[Finding]:
        for at in range(0, len(names), BATCH):
            with reaching_redis():
                await self._redis.unlink(*names[at : at + BATCH])
        return [Finding(kind, name) for name in names]

    async def _lost_blobs(self, pool: str, seen: _Seen) -> list[Finding]:
        lost = [key for key, blob in seen.blobs.items() if not await self._has(blob)]
        return await self._repair(pool, "check_lost_payloads", lost)

    async def _has(self, blob: str) -> bool:
        try:
            await self._blobs.read(blob, 0, 0)
        except ContractViolation:
            return False
        return True

    async def _indexes(self, pool: str) -> list[Finding]:
        prefix = keys.pool_prefix(pool)
        found: list[tuple[str, str]] = []
        cells = await known_cells(self._redis, pool)
        of_cells = [f"{name}{cell_suffix(cell, '@')}" for cell in cells for name in _ZSETS_OF_A_CELL]
        for name in (*_ZSETS, *of_cells):
            async for member, _ in self._redis.zscan_iter(f"{prefix}:{name}", count=BATCH):
                found.append((name, member.decode()))
        async for member, _ in self._redis.hscan_iter(keys.running_samples(pool), count=BATCH):
            found.append(("samples_running", member.decode()))
        async for member in self._redis.sscan_iter(keys.capturing(pool), count=BATCH):
            found.append(("capturing", member.decode()))
        grouped: dict[str, list[str]] = defaultdict(list)
        for name, member in found:
            grouped[name].append(member)
        answers = [await self._repair(pool, "check_index", members, name) for name, members in grouped.items()]
        return [finding for answer in answers for finding in answer]

    async def _usage(self, pool: str, seen: _Seen) -> list[Finding]:
        """Of every tenant that is counted somewhere."""
        prefix = keys.usage(pool, "")
        async for names in self._names(pool, "usage:*"):
            for name in names:
                seen.usage[name.removeprefix(prefix)].update()
        found: list[Finding] = []
        for tenant, counts in seen.usage.items():
            values = [str(counts[name]) for name in ("models", "open", "bytes", "results", "samples")]
            found += await self._repair(pool, "check_usage", values, tenant)
        return found

    async def _without_ttl(self, names: list[str]) -> list[str]:
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.pttl(name)
            answers = await pipe.execute()
        return [name for name, left in zip(names, answers, strict=True) if left == -1]

    async def _fields(self, names: list[str], fields: tuple[str, ...]) -> list[tuple[str, ...]]:
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.hmget(name, fields)
            rows = await pipe.execute() if names else []
        return [tuple((value or b"").decode() for value in row) for row in rows]

    async def sessions(self) -> list[Finding]:
        """Open sessions that no sweep would ever find get their place in the index."""
        found: list[Finding] = []
        head, tail = f"{keys.PREFIX}:{{s:", "}:session"
        async for names in scan_everywhere(self._redis, f"{head}*{tail}"):
            texts = [name.decode() for name in names]
            rows = await self._fields(texts, ("state", "beat_ms"))
            for name, (state, beat_ms) in zip(texts, rows, strict=True):
                if state == "open" and await self._listed(name[len(head) : -len(tail)], int(beat_ms or 0)):
                    found.append(Finding("session_not_listed", name[len(head) : -len(tail)]))
        return found

    async def _listed(self, session_id: str, beat_ms: int) -> bool:
        """Whether it had to be listed."""
        with reaching_redis():
            if await self._redis.zscore(keys.SESSIONS, session_id) is not None:
                return False
            await self._redis.zadd(keys.SESSIONS, {session_id: beat_ms}, gt=True)
        return True


def _findings(texts: Sequence[str]) -> Iterable[Finding]:
    return map(Finding, texts[::2], texts[1::2])


def _of(names: Iterable[str], kind: str) -> list[str]:
    return [name.removeprefix(kind) for name in names if name.startswith(kind)]

"""Reads what the core chooses from: one function call, plus commands not seen before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from redis.asyncio import Redis

from services.common.cells import FIRST_CELL
from services.scheduler.core.view import Clock, ModelQueue, Op, QueuedCommand, ReadyView
from services.scheduler.store import keys
from services.scheduler.store.commands import CommandCache, StoredCommand
from services.scheduler.store.durables import DurableBook
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis
from services.scheduler.store.recovery import recovery_view
from services.scheduler.store.training import RunningUnit, decode_items

COMMANDS_PER_MODEL = 256
UNLOAD = b"unload:"


class CapturedSave(NamedTuple):
    key: str
    unit_id: str
    name: str


class ReadyReader:
    def __init__(self, redis: Redis, functions: Functions, commands: CommandCache) -> None:
        self._redis = cast("Any", redis)
        self._durables = DurableBook(redis)
        self._call = functions.call
        self._commands = commands

    async def view(self, pool: str, token_budget: int, cell: str = FIRST_CELL, *, leaving: bool = False) -> ReadyView:
        """`leaving`: all that could leave the cell is told. Raises Unavailable."""
        arguments = (token_budget, COMMANDS_PER_MODEL, cell, int(leaving))
        models, slots, served, recovery = await self._call("train_view", [keys.pool_prefix(pool)], *arguments)
        wanted = [row[0].decode() for model in models for row in model[5]]
        stored = await self._commands.get(pool, wanted)
        holders = {int(slot): holder for slot, holder in _pairs(slots)}
        return ReadyView(
            models=tuple(_queue(model, stored) for model in models),
            free_slots=tuple(sorted(slot for slot, holder in holders.items() if holder == b"")),
            dirty_slots=tuple(sorted(slot for slot, holder in holders.items() if holder.startswith(UNLOAD))),
            clock=_clock(served),
            recovery=recovery_view(recovery),
        )

    async def holder(self, pool: str, slot: int, cell: str = FIRST_CELL) -> str:
        """The model whose remains a dirty slot holds."""
        with reaching_redis():
            holder = await self._redis.hget(keys.slots(pool, cell), slot)
        return (holder or b"").decode().removeprefix(UNLOAD.decode())

    async def running_units(self, pool: str, cell: str = FIRST_CELL) -> list[RunningUnit]:
        """Units of a cell that were written and not settled: what a former leader left behind."""
        fields = ("incarnation", "work", "items", "cell")
        with reaching_redis():
            names = sorted(name.decode() for name in await self._redis.smembers(keys.running_units(pool)))
            rows = [await self._redis.hmget(keys.unit(pool, name), fields) for name in names]
        return [
            RunningUnit(name, incarnation.decode(), work, decode_items(items))
            for name, (incarnation, work, items, place) in zip(names, rows, strict=True)
            if work is not None and _is(place, cell)
        ]

    async def durables(self, pool: str, cell: str = FIRST_CELL) -> dict[str, str]:
        """Unit ids of durable points of a cell's models that are captured and not settled, by model."""
        running = await self._durables.running(pool)
        places = await self._places(pool, list(running))
        return {model: unit for (model, unit), place in zip(running.items(), places, strict=True) if _is(place, cell)}

    async def capturing(self, pool: str, cell: str = FIRST_CELL) -> list[CapturedSave]:
        """Saves of a cell's models that are captured and not published."""
        with reaching_redis():
            found = [key.decode() for key in await self._redis.smembers(keys.capturing(pool))]
            rows = [await self._redis.hmget(keys.req(pool, key), ("units", "artifact", "parent")) for key in found]
        places = await self._places(pool, [(parent or b"").decode() for _, _, parent in rows])
        return [
            CapturedSave(key, units.decode().split()[-1], name.decode())
            for key, (units, name, _), place in zip(found, rows, places, strict=True)
            if units and name and _is(place, cell)
        ]

    async def _places(self, pool: str, model_ids: Sequence[str]) -> list[bytes | None]:
        with reaching_redis():
            return [await self._redis.hget(keys.model(pool, model_id), "cell") for model_id in model_ids]


def _is(stored: bytes | None, cell: str) -> bool:
    return (stored or FIRST_CELL.encode()) == cell.encode()


def _pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _clock(served: Sequence[bytes]) -> Clock:
    tags = {tenant.decode(): float(tag) for tenant, tag in _pairs(served)}
    virtual = tags.pop("", 0.0)
    return Clock(virtual, {tenant: tag for tenant, tag in tags.items() if tag > virtual})


def _queue(model: Sequence[Any], stored: dict[str, StoredCommand]) -> ModelQueue:
    model_id, tenant, slot, load_number, rejected, rows = model
    commands = (_command(row, stored) for row in rows)
    return ModelQueue(
        model_id=model_id.decode(),
        tenant=tenant.decode(),
        slot=int(slot) if slot else None,
        load_number=int(load_number),
        commands=tuple(command for command in commands if command is not None),
        window_rejected=int(rejected),
    )


def _command(row: Sequence[bytes], stored: dict[str, StoredCommand]) -> QueuedCommand | None:
    key, op, seq, arrival, pack, _, issued, group = (value.decode() for value in row)
    if key not in stored:
        return None
    return QueuedCommand(
        key=key,
        op=Op(op),
        seq=int(seq or 0),
        arrival=int(arrival),
        pack_key=pack,
        costs=stored[key].costs,
        issued=int(issued),
        group=group,
    )

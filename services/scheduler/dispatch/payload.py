"""Gather the payload of a packed pass: the datum blocks of its items, in item order."""

from __future__ import annotations

import asyncio

from tinkermesh.v1 import trainer_pb2 as pb

from services.common.datum_blocks import block_offsets
from services.scheduler.store.commands import StoredCommand
from services.scheduler.store.payloads import PayloadStore


async def gather(pool: str, work: pb.PassWork, commands: list[StoredCommand], payloads: PayloadStore) -> bytes:
    """`commands` belong to the items one by one. Raises ContractViolation, Unavailable."""
    pairs = zip(work.items, commands, strict=True)
    return b"".join(await asyncio.gather(*(_slice(pool, item, stored, payloads) for item, stored in pairs)))


async def _slice(pool: str, item: pb.PassItem, stored: StoredCommand, payloads: PayloadStore) -> bytes:
    table = stored.command.batch.table
    offsets = block_offsets(table.lengths, table.widths, len(table.fields))
    start, end = offsets[item.first_datum], offsets[item.first_datum + len(item.lengths)]
    return stored.payload[start:end] if stored.payload else await payloads.read(pool, stored.upload, start, end)


def size(work: pb.PassWork) -> int:
    """Bytes of the payload of a pass."""
    return sum(block_offsets(item.lengths, item.widths, len(work.fields))[-1] for item in work.items)

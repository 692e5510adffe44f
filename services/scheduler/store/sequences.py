"""Recorded sequences: what samples with record_stability_info left behind, by their sequence id.

A record is written under a name of its own and gets its final one in the function that settles
its sample, so there is one exactly when the client was given that sequence. It lives for a day
after its last use.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple, cast

from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput, UnknownId
from services.common.ids import key_hash, parse_sampling_session_id
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis

_SEQUENCE = re.compile(r"([^.]+)\.(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,4})")
READ_TOGETHER = 32
MAX_BYTES = 128 << 20
"""Of all records one request may name: they are held in memory together."""


class SequenceRef(NamedTuple):
    """A parsed sequence id: the sample's pool and request key, and the number of the sequence in it."""

    pool: str
    key: str
    number: int


class Missing(Enum):
    UNKNOWN = auto()
    FOREIGN = auto()
    UNRECORDED = auto()
    EXPIRED = auto()


def sequence_id(sampling_session_id: str, seq_id: int, index: int) -> str:
    """Unique in its session, the same for every retry of the sample."""
    return f"{sampling_session_id}.{seq_id}.{index}"


def parse_sequence_id(text: str) -> SequenceRef:
    """Raises UnknownId when `text` is not a sequence id."""
    match = _SEQUENCE.fullmatch(text)
    if match is None:
        raise UnknownId(f"sequence_id {text[:200]!r} is not one of this mesh")
    session, seq_id, index = match.groups()
    return SequenceRef(parse_sampling_session_id(session).pool, key_hash("sample", session, seq_id), int(index))


class SequenceStore:
    """`keep_ms`: how long a record lives after its last use."""

    def __init__(self, redis: Redis, functions: Functions, keep_ms: int) -> None:
        self._redis = cast("Any", redis)
        self._call = functions.call
        self._keep_ms = keep_ms

    async def write(self, pool: str, records: Sequence[types.SequenceRecord]) -> str:
        """The upload under which `sampling_settle` finds them; "" for none."""
        if not records:
            return ""
        upload = uuid.uuid4().hex
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for index, record in enumerate(records):
                pipe.set(keys.record_upload(pool, upload, index), record.SerializeToString(), px=self._keep_ms)
            await pipe.execute()
        return upload

    async def use(
        self, pool: str, tenant_id: str, refs: Sequence[SequenceRef]
    ) -> Mapping[SequenceRef, types.SequenceRecord]:
        """The tenant's records that are there; each lives for its whole time again. Others' are not touched.

        Raises InvalidInput when together they are too large.
        """
        found: dict[SequenceRef, types.SequenceRecord] = {}
        total = 0
        for start in range(0, len(refs), READ_TOGETHER):
            part = await self._renewed(pool, tenant_id, refs[start : start + READ_TOGETHER])
            if not part:
                continue
            with reaching_redis():
                answers = await self._redis.mget([keys.record(pool, ref.key, ref.number) for ref in part])
            total += sum(len(data) for data in answers if data is not None)
            if total > MAX_BYTES:
                raise InvalidInput(f"data: its recorded sequences have more than {MAX_BYTES} bytes; send fewer datums")
            pairs = zip(part, answers, strict=True)
            found |= {ref: types.SequenceRecord.FromString(data) for ref, data in pairs if data is not None}
        return found

    async def _renewed(self, pool: str, tenant_id: str, refs: Sequence[SequenceRef]) -> list[SequenceRef]:
        names = [name for ref in refs for name in (ref.key, ref.number)]
        found = await self._call("records_renew", [keys.pool_prefix(pool)], tenant_id, self._keep_ms, *names)
        return [ref for ref, there in zip(refs, found, strict=True) if there]

    async def sweep(self, pool: str, limit: int) -> int:
        """Forgets records whose time is over; answers how many."""
        return int(await self._call("records_sweep", [keys.pool_prefix(pool)], limit))

    async def why_missing(self, ref: SequenceRef, tenant_id: str) -> Missing:
        with reaching_redis():
            row = await self._redis.hmget(keys.req(ref.pool, ref.key), "tenant", "recorded", "sequences")
        tenant, recorded, sequences = ((value or b"").decode() for value in row)
        if not tenant or ref.number >= int(sequences or 0):
            return Missing.UNKNOWN
        if tenant != tenant_id:
            return Missing.FOREIGN
        return Missing.EXPIRED if recorded == "1" else Missing.UNRECORDED

"""Puts the recorded log-probabilities into the datums of a loss that reads them, once, at admission.

From then on they are part of the command's stored payload: a retry, another leader and a replay
find the same bytes, whatever has become of the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tinkermesh.v1 import types_pb2 as types

from services.common import stable_reinforce
from services.common.datum_blocks import Float32, Int32, block_offsets
from services.common.errors import InvalidInput, UnknownId
from services.scheduler.dispatch.commands import check_payload
from services.scheduler.store.sequences import Missing, SequenceRef, SequenceStore, parse_sequence_id

_REASONS = {
    Missing.UNKNOWN: "is not known to this mesh",
    Missing.FOREIGN: "belongs to another tenant",
    Missing.UNRECORDED: "was not recorded: sample it with record_stability_info=true",
    Missing.EXPIRED: "has expired: a record is kept for a limited time after its last use; sample again",
}


@dataclass(frozen=True, slots=True)
class _Sequence:
    """tokens int32 [n]; logprobs, raw float32 [n]."""

    tokens: Int32
    logprobs: Float32
    raw: Float32


def reads_records(command: types.Command) -> bool:
    return command.batch.loss.loss_fn == stable_reinforce.NAME and not command.rejected


async def with_records(
    command: types.Command, payload: bytes, pool: str, tenant_id: str, store: SequenceStore
) -> tuple[types.Command, bytes]:
    """The command and its payload with the recorded vectors in place of the provenance.

    Raises InvalidInput naming the datum, the sequence and what is wrong with it.
    """
    table = command.batch.table
    check_payload(table, len(payload))
    _check_shape(command.batch)
    sequences = await _sequences(command.batch.provenance, pool, tenant_id, store)
    # In a thread: many small datums take a while, and everyone else's admissions wait for this loop.
    joined = await asyncio.to_thread(lambda: b"".join(_blocks(command.batch, payload, sequences)))
    resolved = types.Command()
    resolved.CopyFrom(command)
    del resolved.batch.provenance[:]
    resolved.batch.table.fields.extend(stable_reinforce.RECORDED)
    return resolved, joined


def _check_shape(batch: types.BatchBody) -> None:
    table = batch.table
    if tuple(table.fields) != stable_reinforce.GIVEN or set(table.widths) - {1}:
        given = ", ".join(stable_reinforce.GIVEN)
        raise InvalidInput(f"command.batch.table: {stable_reinforce.NAME} comes with {given}, one target per position")
    if len(batch.provenance) != len(table.lengths):
        raise InvalidInput(f"provenance: {len(batch.provenance)} for {len(table.lengths)} datums")


async def _sequences(
    provenance: Sequence[types.DatumProvenance], pool: str, tenant_id: str, store: SequenceStore
) -> dict[str, _Sequence]:
    """Every sequence that a datum has sampled tokens of, by its id."""
    first_use = {
        span.sequence_id: index
        for index, datum in reversed(list(enumerate(provenance)))
        for span in (*datum.model_input, *datum.targets)
        if span.sampled
    }
    refs = {name: _ref(index, name, pool) for name, index in first_use.items()}
    records = await store.use(pool, tenant_id, list(refs.values()))
    for name, index in sorted(first_use.items(), key=lambda use: use[1]):
        if refs[name] not in records:
            raise _refusal(index, name, await store.why_missing(refs[name], tenant_id))
    return {name: _sequence(records[ref]) for name, ref in refs.items()}


def _ref(index: int, name: str, pool: str) -> SequenceRef:
    try:
        ref = parse_sequence_id(name)
    except UnknownId as error:
        raise InvalidInput(f"datum {index}: {error.message}") from error
    if ref.pool != pool:
        raise InvalidInput(f"datum {index}: sequence_id {name} was sampled from another base model (pool {ref.pool})")
    return ref


def _refusal(index: int, name: str, why: Missing) -> InvalidInput:
    return InvalidInput(f"datum {index}: sequence_id {name} {_REASONS[why]}")


def _sequence(record: types.SequenceRecord) -> _Sequence:
    logprobs = np.frombuffer(record.logprobs, "<f4")
    raw = np.frombuffer(record.raw_logprobs, "<f4") if record.raw_logprobs else logprobs
    return _Sequence(np.frombuffer(record.tokens, "<i4"), logprobs, raw)


def _blocks(batch: types.BatchBody, payload: bytes, sequences: dict[str, _Sequence]) -> Iterator[bytes]:
    """Each datum's block with the two vectors behind it."""
    table = batch.table
    offsets = block_offsets(table.lengths, table.widths, len(table.fields))
    for index, (length, datum) in enumerate(zip(table.lengths, batch.provenance, strict=True)):
        block = payload[offsets[index] : offsets[index + 1]]
        tokens, targets = np.frombuffer(block, "<i4", 2 * length).reshape(2, length)
        _match(index, "model_input", tokens, datum.model_input, sequences)
        _match(index, "target_tokens", targets, datum.targets, sequences)
        logprobs, raw = _vectors(length, datum.targets, sequences)
        yield block
        yield logprobs.tobytes()
        yield raw.tobytes()


def _match(
    index: int,
    field: str,
    tokens: npt.NDArray[np.int32],
    spans: Sequence[types.ProvenanceSpan],
    sequences: dict[str, _Sequence],
) -> None:
    """Raises InvalidInput unless every sampled span is, token for token, what was sampled."""
    start = 0
    for span in spans:
        end = start + span.length
        if span.sampled:
            sampled = sequences[span.sequence_id].tokens[span.offset : span.offset + span.length]
            if len(sampled) != span.length:
                raise InvalidInput(
                    f"datum {index}: {field}: sequence_id {span.sequence_id} has no tokens "
                    f"{span.offset}..{span.offset + span.length - 1}"
                )
            if (different := np.flatnonzero(tokens[start:end] != sampled)).size:
                position = start + int(different[0])
                raise InvalidInput(
                    f"datum {index}, position {position}: {field} has {tokens[position]}, sequence_id "
                    f"{span.sequence_id} sampled {sampled[position - start]} there"
                )
        start = end
    if start != len(tokens):
        raise InvalidInput(f"datum {index}: the spans of {field} cover {start} positions of {len(tokens)}")


def _vectors(
    length: int, spans: Sequence[types.ProvenanceSpan], sequences: dict[str, _Sequence]
) -> tuple[Float32, Float32]:
    """(logprobs, raw_logprobs) float32 [length], NaN where the position was not sampled."""
    logprobs, raw = np.full((2, length), np.nan, "<f4")
    start = 0
    for span in spans:
        if span.sampled:
            found = sequences[span.sequence_id]
            logprobs[start : start + span.length] = found.logprobs[span.offset : span.offset + span.length]
            raw[start : start + span.length] = found.raw[span.offset : span.offset + span.length]
        start += span.length
    return logprobs, raw

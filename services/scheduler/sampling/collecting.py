"""A stream of chunks as one result."""

from __future__ import annotations

from collections.abc import Iterable

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types


def collected(chunks: Iterable[pb.SampleChunk], sequences: int) -> types.SampleResult:
    """`chunks`: of a whole stream, each sequence's in order."""
    made = [types.SampledSequence() for _ in range(sequences)]
    cached = 0
    for chunk in chunks:
        one = made[chunk.sequence]
        one.tokens += chunk.tokens
        one.logprobs += chunk.logprobs
        one.stopped = chunk.finish == "stop"
        if chunk.HasField("topk"):
            append_rows(one.topk, chunk.topk)
        cached = max(cached, chunk.cached_tokens)
    return types.SampleResult(sequences=made, prompt_cache_hit_tokens=cached)


def append_rows(table: types.TopkTable, rows: types.TopkTable) -> None:
    """One row per token, each of k entries."""
    table.token_ids += rows.token_ids
    table.logprobs += rows.logprobs
    table.k, table.length = rows.k, table.length + rows.length

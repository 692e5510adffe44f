"""What the gateway spends on a forward_backward body, from the wire's bytes to the command it submits.

The gateway's own functions in this process, one thread: parse, validate, canonical datum blocks,
fingerprint. MB are 10^6 bytes of the body as the client built it, before compression.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import zstandard
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.wire.v1 import wire_pb2 as wire

from benchmarks.datums import Tokens, datum, draw
from benchmarks.figure import Figure
from benchmarks.interleave import interleave
from services.gateway.routes.batches import Source, decode_batch
from services.gateway.settings import Limits
from services.gateway.wire import batch_protobuf, bodies
from services.gateway.wire.json_body import decode
from services.gateway.wire.zstd import ZstdCap, decompress
from tests.doubles.fake_trainer import trainer_facts

DATUMS, TOKENS, VOCABULARY = 64, 512, 49_152
CAP = ZstdCap(64 << 20, 500, 8 << 20)
Decode = Callable[[], None]


def run(quick: bool) -> list[Figure]:
    repetitions, rounds = (3, 3) if quick else (15, 20)
    bodies_by_name, variants = _bodies(), dict[str, Callable[[], float]]()
    for name, decoder in _decoders(bodies_by_name).items():
        variants[name] = _timed(decoder, max(1, rounds // 5) if name == "JSON" else rounds)
    results = interleave(variants, repetitions, warmup=1)
    return [figure for name in results for figure in _figures(name, bodies_by_name, results[name])]


def _figures(name: str, sizes: dict[str, bytes], seconds: list[float]) -> list[Figure]:
    size = len(sizes["protobuf" if name == "zstd + protobuf" else name])
    note = f"{len(sizes[name]) / 1e6:.2f} MB on the wire, {DATUMS} datums of {TOKENS} tokens"
    return [
        Figure(f"decode {name}", [size / 1e6 / s for s in seconds], "MB/s", note=note),
        Figure(f"decode {name}, tokens", [DATUMS * TOKENS / 1e6 / s for s in seconds], "M tokens/s"),
    ]


def _timed(decoder: Decode, rounds: int) -> Callable[[], float]:
    def measure() -> float:
        started = time.perf_counter()
        for _ in range(rounds):
            decoder()
        return (time.perf_counter() - started) / rounds

    return measure


def _decoders(encoded: dict[str, bytes]) -> dict[str, Decode]:
    facts, limits = trainer_facts(), Limits()
    facts.vocab_size = VOCABULARY
    return {
        "protobuf": lambda: _protobuf(encoded["protobuf"], facts, limits),
        "zstd + protobuf": lambda: _protobuf(decompress(encoded["zstd + protobuf"], CAP), facts, limits),
        "JSON": lambda: _json(encoded["JSON"], facts, limits),
    }


def _protobuf(body: bytes, facts: types.PoolFacts, limits: Limits) -> None:
    request, _ = batch_protobuf.parse(body, limits)
    envelope = bodies.ModelEnvelope(model_id=request.model_id, seq_id=request.seq_id)
    _checked(Source(envelope, request, False), facts, limits)


def _json(body: bytes, facts: types.PoolFacts, limits: Limits) -> None:
    _checked(Source(decode(body, bodies.ModelEnvelope), body, False), facts, limits)


def _checked(source: Source, facts: types.PoolFacts, limits: Limits) -> None:
    """Raises ValueError when the body was refused: refusing is faster than decoding."""
    command = decode_batch(source, facts, limits).prepared.command
    if command.rejected:
        raise ValueError(command.rejected)


def _bodies() -> dict[str, bytes]:
    """One batch in its three encodings."""
    rows = draw(DATUMS, TOKENS, VOCABULARY)
    request = wire.ForwardBackwardRequest(model_id="s:train:0", seq_id=1, loss_fn="cross_entropy")
    request.data.extend(datum(row) for row in rows)
    plain = request.SerializeToString()
    return {
        "protobuf": plain,
        "zstd + protobuf": zstandard.ZstdCompressor().compress(plain),
        "JSON": msgspec.json.encode(_json_body(rows)),
    }


def _json_body(rows: Tokens) -> dict[str, object]:
    data = [
        {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": row[:-1].tolist()}]},
            "loss_fn_inputs": {
                "target_tokens": {"data": row[1:].tolist(), "dtype": "int64", "shape": [TOKENS]},
                "weights": {"data": [1.0] * TOKENS, "dtype": "float32", "shape": [TOKENS]},
            },
        }
        for row in rows
    ]
    return {"model_id": "s:train:0", "seq_id": 1, "forward_backward_input": {"data": data, "loss_fn": "cross_entropy"}}

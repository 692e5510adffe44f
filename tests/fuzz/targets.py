"""What is fuzzed. Each target takes any bytes; only a UserError may come out of the product's code.

`decode` targets call one decoder and hold what it accepts against an independent statement of it;
`http` sends requests through the whole gateway application, in this process, without a network.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import zstandard

from services.common.datum_blocks import block_offsets
from services.common.errors import UserError
from services.gateway import wire as wire_package
from services.gateway.openai.errors import error_object
from services.gateway.routes import batches, openai
from services.gateway.settings import Limits
from services.gateway.wire import json_body, tensors, zstd
from tests.contract.gateway import wire_forms as forms
from tests.contract.gateway.submitted import facts
from tests.contract.gateway.test_fuzz import openai_bodies
from tests.fuzz import csr_reference
from tests.fuzz.mutate import mutated
from tests.fuzz.structured import json_or_bytes, protobuf_or_bytes, zstd_or_bytes

GATEWAY = Path(wire_package.__file__).parent.parent
MODEL = "00000000-0000-4000-8000-000000000000:train:0"
LIMITS = Limits(max_datums=64, max_tokens_per_datum=4096, max_parts=4096)
MEBIBYTE = 1 << 20

Mutate = Callable[[random.Random, bytes, list[bytes]], bytes]


class Finding(AssertionError):
    """The product did what it must not."""


@dataclass(frozen=True)
class Target:
    """`ceiling`: bytes one execution may allocate at once. `folders`: whose lines count as coverage."""

    name: str
    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    folders: tuple[Path, ...]
    ceiling: int = 32 * MEBIBYTE
    mutate: Mutate = mutated


def decoders() -> dict[str, Target]:
    folders = (GATEWAY / "wire", GATEWAY / "validation")
    made = (
        Target("protobuf", run_protobuf, tuple(_protobuf_seeds()), folders, mutate=protobuf_or_bytes),
        Target("json_batch", run_json_batch, tuple(_json_seeds()), folders, mutate=json_or_bytes),
        Target(
            "json_values",
            run_json_values,
            (b'{"b":{"x":[1,2.5,null]},"a":"\\u00e9"}', b"{}", b"null"),
            folders,
            mutate=json_or_bytes,
        ),
        Target("zstd", run_zstd, tuple(_zstd_seeds()), folders, 2 * ZSTD.free_bytes + 8 * MEBIBYTE, zstd_or_bytes),
        Target("csr", run_csr, tuple(_csr_seeds()), folders),
        Target("openai", run_openai, tuple(_openai_seeds()), (GATEWAY / "openai",), mutate=_mutate_openai),
    )
    return {target.name: target for target in made}


# ---- whole batches -------------------------------------------------------------------------


def run_protobuf(data: bytes) -> None:
    _batch(data, protobuf=True)


def run_json_batch(data: bytes) -> None:
    _batch(data, protobuf=False)


def _batch(data: bytes, *, protobuf: bool) -> None:
    """An accepted batch's payload is exactly what its table announces: what the scheduler will check."""
    try:
        source = batches._read_envelope(data, protobuf, False, LIMITS)
    except UserError:
        return
    decoded = batches.decode_batch(source, facts(), LIMITS).prepared
    if decoded.command.rejected:
        if decoded.payload:
            raise Finding("a rejected batch has a payload")
        return
    table = decoded.command.batch.table
    if block_offsets(table.lengths, table.widths, len(table.fields))[-1] != len(decoded.payload):
        raise Finding("an accepted batch's payload is not what its table says")
    provenance = decoded.command.batch.provenance
    if len(provenance) not in (0, len(table.lengths)):
        raise Finding("some datums of an accepted batch have provenance and others none")
    for length, one in zip(table.lengths, provenance, strict=False):
        if {sum(span.length for span in spans) for spans in (one.model_input, one.targets)} != {length}:
            raise Finding("an accepted datum's spans do not tile it")


def _requests() -> Iterator[dict[str, object]]:
    yield forms.request(MODEL, 1, [forms.supervised([5, 6, 7])])
    yield forms.request(
        MODEL, 2, [forms.policy([1, 2]), forms.policy([3])], "ppo", loss_fn_config={"clip_low_threshold": 0.5}
    )
    weights = forms.sparse([1.0, 2.0], [0, 2], [0, 2], [3])
    sparse = forms.datum([1, 2, 3], target_tokens=forms.tensor([2, 3, 4], "int64"), weights=weights)
    yield forms.request(MODEL, 3, [sparse])
    targets = forms.tensor([2, 3, 4, 5], "int64", [2, 2])
    wide = forms.datum([1, 2], target_tokens=targets, weights=forms.sparse([1.0, 0.5], [0, 1, 2], [0, 1], [2, 2]))
    yield forms.request(MODEL, 4, [wide])
    yield forms.request(MODEL, 5, [forms.policy([1, 2])], "importance_sampling", forward_only=True)
    yield forms.request(MODEL, 6, [_recorded()], "stable_reinforce", loss_fn_config={"kl_coeff": 0.1})
    masked = forms.policy([1, 2])
    masked["loss_fn_inputs"]["sequence_ratio_mask"] = forms.tensor([0.0, 1.0], "float32")
    yield forms.request(MODEL, 7, [masked], "gspo")
    column = forms.datum([1, 2], target_tokens=forms.tensor([2, 3], "int64", [2, 1]))
    yield forms.request(MODEL, 8, [column])


def _recorded() -> dict[str, object]:
    given = {"advantages": forms.tensor([0.0, 1.0, -1.0], "float32")}
    prompt, sampled = {"sequence_id": "s.0.0", "offset": 1, "length": 1}, {"sequence_id": "s.0.0", "length": 2}
    spans = [{"prompt_tokens": prompt}, {"sampled_tokens": sampled}]
    one = forms.datum([5, 6, 7], target_tokens=forms.tensor([0, 7, 8], "int64"), **given)
    return {**one, "model_input_spans": spans, "loss_fn_input_spans": spans}


def _protobuf_seeds() -> Iterator[bytes]:
    for request in _requests():
        yield forms.to_protobuf(request)
        yield forms.to_protobuf(request, split=True)


def _json_seeds() -> Iterator[bytes]:
    yield from (msgspec.json.encode(request) for request in _requests())


# ---- OpenAI's bodies -----------------------------------------------------------------------


def run_openai(data: bytes) -> None:
    """The first byte says of which route. What is accepted is within the bounds, and every refusal has its shape."""
    prepare = openai._chat if data[:1] == b"c" else openai._completion
    try:
        request, wish = prepare(data[1:], LIMITS)
    except UserError as error:
        if set(error_object(error)) != {"message", "type", "param", "code"} or not error.message:
            raise Finding("a refusal without OpenAI's shape") from error
        return
    if not 1 <= len(request.prompts) * wish.per_prompt <= LIMITS.max_samples:
        raise Finding(f"{len(request.prompts)} prompts with n {wish.per_prompt} were accepted")
    if request.body.topk_sample_logprobs > LIMITS.max_topk_logprobs or not 0 < request.body.top_p <= 1:
        raise Finding(f"accepted: {request.body}")
    if any(len(prompt.tokens) % 4 for prompt in request.prompts):
        raise Finding("a prompt of ids that are no int32")
    request.SerializeToString()


def _mutate_openai(rng: random.Random, seed: bytes, others: list[bytes]) -> bytes:
    return seed[:1] + json_or_bytes(rng, seed[1:], [other[1:] for other in others])


def _openai_seeds() -> Iterator[bytes]:
    for route, body in openai_bodies().items():
        yield (b"c" if route.startswith("chat") else b"t") + msgspec.json.encode(body)
    yield b"t" + msgspec.json.encode({"model": "m", "prompt": "text", "echo": True, "suffix": None})
    yield b"t" + msgspec.json.encode({"model": "m", "prompt": [1, 2, 3], "stop": "x", "max_tokens": None})


# ---- single decoders -----------------------------------------------------------------------


def run_json_values(data: bytes) -> None:
    """Metadata: what is kept is an object, and canonical: decoding and encoding it again changes nothing."""
    try:
        text = json_body.canonical_json(msgspec.Raw(data))
    except UserError:
        return
    if text and msgspec.json.encode(msgspec.json.decode(text, type=dict), order="sorted").decode() != text:
        raise Finding("canonical JSON is not canonical")


ZSTD = zstd.ZstdCap(max_bytes=8 * MEBIBYTE, max_ratio=100, free_bytes=MEBIBYTE)


def run_zstd(data: bytes) -> None:
    try:
        content = zstd.decompress(data, ZSTD)
    except UserError:
        return
    if len(content) > ZSTD.allowed(len(data)):
        raise Finding(f"{len(content)} bytes came out of {len(data)}")
    if zstandard.ZstdDecompressor().decompressobj().decompress(data) != content:
        raise Finding("decompressed bytes differ")


def _zstd_seeds() -> Iterator[bytes]:
    for level, size in ((1, 0), (3, 100), (19, 5000)):
        content = random.Random(size).randbytes(size // 10) * 10
        yield zstandard.ZstdCompressor(level=level).compress(content)
        yield zstandard.ZstdCompressor(level=level, write_content_size=False, write_checksum=True).compress(content)
    yield zstandard.ZstdCompressor().compress(bytes(4 * MEBIBYTE))


_INTS = (0, 1, 2, 3, 4, 5, 6, 7, 8, -1, -2, 127, 2**31, 2**63 - 1, -(2**63), 10**12)


def run_csr(data: bytes) -> None:
    """The first bytes say how many of what; each further byte is one number. Held against csr_reference."""
    head, rest = data[:5].ljust(5, b"\0"), [_INTS[byte % len(_INTS)] for byte in data[5:69]]
    rank, n_crow, n_col, length, width = head[0] % 4, head[1] % 8, head[2] % 8, head[3] % 8, head[4] % 4
    shape, rest = rest[:rank], rest[rank:]
    crow, rest = rest[:n_crow], rest[n_crow:]
    col, values = rest[:n_col], [float(value % 100) for value in rest[n_col : 2 * n_col]]
    expected = csr_reference.dense(values, crow, col, shape, length, width)
    bound = tensors.SparseBound(length, width, tensors.Room(1 << 16))
    try:
        found = tensors.densify(
            np.array(values, "<f4"), np.array(crow, "<i8"), np.array(col, "<i8"), "float32", tuple(shape), bound
        )
    except UserError as error:
        if expected is not None:
            raise Finding(f"a good sparse tensor was refused: {error}") from error
        return
    if expected is None or found.values.tolist() != expected:
        raise Finding(f"sparse {shape} {crow} {col} {values} became {found.values.tolist()}, not {expected}")


def _csr_seeds() -> Iterator[bytes]:
    def seed(shape: list[int], crow: list[int], col: list[int], length: int, width: int) -> bytes:
        numbers = [_INTS.index(value) for value in (*shape, *crow, *col, *col)]
        return struct.pack("5B", len(shape), len(crow), len(col), length, width) + bytes(numbers)

    yield seed([3], [0, 2], [0, 2], 3, 1)
    yield seed([2, 2], [0, 1, 2], [0, 1], 2, 2)
    yield seed([3, 2], [0, 2, 2, 3], [0, 1, 1], 3, 3)
    yield seed([0], [0, 0], [], 0, 1)

"""A safetensors file, written tensor by tensor: no second copy in memory, its checksum taken on the way.

    u64 little-endian N | N bytes of JSON: name -> dtype, shape, data_offsets | the tensors' bytes

Hashing and writing let other threads run; building the file in memory first would not.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from services.common.errors import ContractViolation

ALIGNMENT = 8
CHECKSUM_BYTES = 32


@dataclass(frozen=True, slots=True)
class Written:
    """`checksum`: blake2b of the whole file, hexadecimal."""

    size: int
    checksum: str


def checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=CHECKSUM_BYTES).hexdigest()


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> Written:
    """`tensors`: float32, on the CPU. Raises ContractViolation for others, OSError."""
    names = sorted(tensors)
    digest, size = hashlib.blake2b(digest_size=CHECKSUM_BYTES), 0
    with path.open("wb") as file:
        for part in _parts(names, tensors, metadata):
            digest.update(part)
            size += file.write(part)
    return Written(size, digest.hexdigest())


def _parts(
    names: list[str], tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None
) -> Iterator[bytes | memoryview]:
    yield _header(names, tensors, metadata)
    for name in names:
        yield _bytes(tensors[name])


def _header(names: list[str], tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None) -> bytes:
    listed: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    begin = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ContractViolation(f"{name} is {tensor.dtype} on {tensor.device}; images are float32 on the CPU")
        end = begin + tensor.numel() * tensor.element_size()
        listed[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(listed, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().contiguous().reshape(-1).numpy().data.cast("B")

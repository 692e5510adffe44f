"""The half of the connector beside the engine's memory: copies blocks out of it and into it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch

from services.common.errors import InvalidInput
from services.sampler.kv_connector.block_file import BadBlock, BlockGeometry
from services.sampler.kv_connector.steps import BlockMove, StepMoves


class Tier(Protocol):
    """Called in the engine's thread: `save` neither waits nor raises, `block` raises BadBlock."""

    def save(self, sequence_id: str, key: str, payload: bytes) -> None: ...

    def block(self, key: str) -> memoryview: ...

    def loaded(self, sequence_id: str) -> None: ...

    def load_failed(self, sequence_id: str, key: str, cause: BadBlock) -> None: ...


def geometry_of(caches: Mapping[str, torch.Tensor], block_size: int) -> BlockGeometry:
    """Of caches [blocks, kv_heads, block_size, 2 * head_dim], one for each layer. Raises InvalidInput for others."""
    shapes = {tuple(cache.shape[1:]) for cache in caches.values()}
    kinds = {cache.dtype for cache in caches.values()}
    alike = len(shapes) == len(kinds) == 1
    if not alike or any(len(shape) != 3 or shape[1] != block_size for shape in shapes):
        raise InvalidInput(f"this engine's cache cannot be shared: its layers have blocks of {shapes} and {kinds}")
    ((heads, _, row),), (dtype,) = shapes, kinds
    return BlockGeometry(
        layers=len(caches),
        kv_heads=heads,
        block_size=block_size,
        row_bytes=row * dtype.itemsize,
        head_dim=row // 2,
        dtype=str(dtype).removeprefix("torch."),
    )


class WorkerSide:
    """`caches` in the order of the layers' names: the same in every engine of one model."""

    def __init__(self, caches: Mapping[str, torch.Tensor], tier: Tier) -> None:
        self._caches = [caches[name] for name in sorted(caches, key=_layer_order)]
        self._tier = tier
        self._failed_blocks: set[int] = set()

    def load(self, moves: StepMoves) -> None:
        for move in moves.loads:
            try:
                self._write(move.block_id, self._tier.block(move.key))
            except BadBlock as cause:
                self._failed_blocks.add(move.block_id)
                self._tier.load_failed(move.sequence_id, move.key, cause)
        for sequence_id in {move.sequence_id for move in moves.loads}:
            self._tier.loaded(sequence_id)

    def save(self, moves: StepMoves) -> None:
        """The copy is made here and now: what becomes of the block afterwards does not matter to it."""
        for move in moves.saves:
            self._tier.save(move.sequence_id, move.key, self._read(move))

    def take_failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def _read(self, move: BlockMove) -> bytes:
        rows = (cache[move.block_id].contiguous().view(torch.uint8).cpu().numpy() for cache in self._caches)
        return b"".join(row.tobytes() for row in rows)

    def _write(self, block_id: int, payload: memoryview) -> None:
        size = len(payload) // len(self._caches)
        for index, cache in enumerate(self._caches):
            block = cache[block_id]
            part = bytearray(payload[index * size : (index + 1) * size])
            block.copy_(torch.frombuffer(part, dtype=block.dtype).reshape(block.shape))


def _layer_order(name: str) -> tuple[float, str]:
    """By the layer's number: "…layers.10…" comes after "…layers.9…"."""
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return (numbers[0] if numbers else math.inf, name)

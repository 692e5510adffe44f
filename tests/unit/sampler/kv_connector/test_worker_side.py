"""Blocks between the engine's memory and the tier: bytes of every layer, in the layers' order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from services.common.errors import InvalidInput
from services.sampler.kv_connector.block_file import BadBlock
from services.sampler.kv_connector.steps import BlockMove, StepMoves
from services.sampler.kv_connector.worker_side import WorkerSide, geometry_of

BLOCKS, HEADS, BLOCK, ROW = 5, 2, 4, 6


@dataclass
class MemoryTier:
    kept: dict[str, bytes] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def save(self, sequence_id: str, key: str, payload: bytes) -> None:
        self.kept[key] = payload

    def block(self, key: str) -> memoryview:
        if key not in self.kept:
            raise BadBlock("missing", "there is no such block")
        return memoryview(self.kept[key])

    def loaded(self, sequence_id: str) -> None:
        self.done.append(sequence_id)

    def load_failed(self, sequence_id: str, key: str, cause: BadBlock) -> None:
        self.failures.append((sequence_id, key))


def caches(dtype: torch.dtype, layers: int = 12, seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    names = [f"model.layers.{n}.self_attn.attn" for n in range(layers)]
    return {name: torch.randn(BLOCKS, HEADS, BLOCK, ROW).to(dtype) for name in names}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_lands_in_another_engine_bit_by_bit(dtype: torch.dtype) -> None:
    """The layers of the second come in another order, and sort as numbers: 10 after 9."""
    tier, here, there = MemoryTier(), caches(dtype), caches(dtype, seed=1)
    before = {name: cache.clone() for name, cache in there.items()}
    WorkerSide(here, tier).save(StepMoves(saves=[BlockMove("s", "k", 3)]))
    WorkerSide(dict(reversed(there.items())), tier).load(StepMoves(loads=[BlockMove("d", "k", 1)]))
    for name, cache in there.items():
        assert torch.equal(cache[1], here[name][3])
        others = [n for n in range(BLOCKS) if n != 1]
        assert torch.equal(cache[others], before[name][others])
    assert tier.done == ["d"]
    assert len(tier.kept["k"]) == geometry_of(here, BLOCK).block_bytes


def test_a_saved_copy_does_not_change_with_the_block_TAIL_12() -> None:
    tier, here = MemoryTier(), caches(torch.float32)
    side = WorkerSide(here, tier)
    side.save(StepMoves(saves=[BlockMove("s", "k", 3)]))
    kept = bytes(tier.kept["k"])
    for cache in here.values():
        cache.zero_()
    assert bytes(tier.kept["k"]) == kept
    assert any(kept)


def test_a_block_that_is_not_there_is_told_to_the_engine_once() -> None:
    tier, here = MemoryTier(), caches(torch.float32)
    side = WorkerSide(here, tier)
    side.load(StepMoves(loads=[BlockMove("d", "k", 2)]))
    assert tier.failures == [("d", "k")]
    assert side.take_failed_blocks() == {2}
    assert side.take_failed_blocks() == set()


@pytest.mark.parametrize("shape", [(BLOCKS, BLOCK, HEADS, ROW), (2, BLOCKS, HEADS, BLOCK, ROW)])
def test_a_cache_of_another_layout_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="cannot be shared"):
        geometry_of({"layers.0": torch.zeros(shape)}, BLOCK)


def test_an_engine_without_a_cache_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot be shared"):
        geometry_of({}, BLOCK)


def test_a_cache_whose_layers_differ_is_refused() -> None:
    mixed = {"layers.0": torch.zeros(BLOCKS, HEADS, BLOCK, ROW), "layers.1": torch.zeros(BLOCKS, 1, BLOCK, ROW)}
    with pytest.raises(InvalidInput, match="cannot be shared"):
        geometry_of(mixed, BLOCK)

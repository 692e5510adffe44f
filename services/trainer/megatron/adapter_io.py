"""A slot's state in and out of the canonical PEFT layout, independent of tensor parallelism."""

from __future__ import annotations

import hashlib
import math

import torch
import torch.distributed as dist

from services.trainer.engine import Layout, SlotImage
from services.trainer.megatron.lora.plan import Entry, FlatPlan
from services.trainer.megatron.lora.slots import Slot
from services.trainer.megatron.runtime import Runtime


def gather(flat: torch.Tensor, plan: FlatPlan, names: list[str], runtime: Runtime) -> dict[str, torch.Tensor]:
    """Full tensors by PEFT name, float32 on the CPU; empty on ranks other than 0. Collective.

    Views into one copy of `flat`, not all of them contiguous: whoever writes them rearranges them.
    """
    shards = _all_shards(flat[plan.replicated :], runtime)
    if runtime.rank != 0:
        return {}
    copy = flat.detach().to("cpu", copy=True)
    return {name: _assemble(copy, shards, plan, plan.by_name[name]) for name in names}


def _all_shards(shard: torch.Tensor, runtime: Runtime) -> list[torch.Tensor]:
    """Of every rank; empty when there is only one."""
    if runtime.tp_size == 1:
        return []
    shards = [torch.empty_like(shard) for _ in range(runtime.tp_size)]
    dist.all_gather(shards, shard.contiguous(), group=runtime.tp_group)
    return shards


def _assemble(copy: torch.Tensor, shards: list[torch.Tensor], plan: FlatPlan, entry: Entry) -> torch.Tensor:
    if entry.cut is None or not shards:
        return plan.view(copy, entry)
    parts = [entry.view(shard, entry.offset - plan.replicated) for shard in shards]
    return torch.cat(parts, dim=entry.cut).to("cpu")


@torch.no_grad()
def scatter(values: dict[str, torch.Tensor], flat: torch.Tensor, plan: FlatPlan, runtime: Runtime) -> None:
    """Write this rank's part of the full tensors `values` into `flat` [plan.size]."""
    for name, value in values.items():
        entry = plan.by_name[name]
        plan.view(flat, entry).copy_(_cut(value, entry, runtime))


def _cut(value: torch.Tensor, entry: Entry, runtime: Runtime) -> torch.Tensor:
    if entry.cut is None:
        return value
    size = entry.shape[entry.cut]
    return value.narrow(entry.cut, runtime.tp_rank * size, size)


def initial_weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    """PEFT's start: A Kaiming-uniform with a = sqrt(5), B zero. Equal for equal seeds on every rank."""
    generator = torch.Generator().manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
    weights = {}
    for name, shape in shapes.items():
        value = torch.zeros(shape)
        if name.endswith("lora_A.weight"):
            bound = 1.0 / math.sqrt(shape[1])
            value.uniform_(-bound, bound, generator=generator)
        weights[name] = value
    return weights


def image_of(slot: Slot, names: list[str], runtime: Runtime, *, moments: bool) -> SlotImage:
    """A copy of the slot; complete on rank 0, without tensors elsewhere. Collective."""
    weights = gather(slot.weights.tensor, slot.plan, names, runtime)
    if not moments:
        return SlotImage(slot.layout, weights)
    return SlotImage(
        slot.layout,
        weights,
        gather(slot.exp_avg, slot.plan, names, runtime),
        gather(slot.exp_avg_sq, slot.plan, names, runtime),
        slot.step,
    )


def digest(slot: Slot | None) -> str:
    """Hex digest of everything this rank holds for the slot, or of its emptiness."""
    state = hashlib.blake2b(digest_size=16)
    if slot is not None:
        state.update(repr((_facts(slot.layout), slot.step, slot.window is not None)).encode())
        for tensor in (slot.weights.tensor, slot.exp_avg, slot.exp_avg_sq):
            state.update(_bytes(tensor))
        if slot.window is not None:
            state.update(_bytes(slot.window.tensor))
    return state.hexdigest()


def _facts(layout: Layout) -> tuple[float | bool, ...]:
    return (layout.rank, layout.alpha, layout.train_attn, layout.train_mlp, layout.train_unembed)


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().cpu().numpy().data.cast("B")

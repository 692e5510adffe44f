"""Which linear layers carry adapters, and how each is cut over tensor-parallel ranks.

A *part* is one PEFT target (q_proj, …). Parts that read the same input form a *group*: one
Megatron linear layer, whose A matrices are multiplied in a single GEMM but stay separate
parameters. Column-parallel: A is whole on every rank, B is cut over its rows. Row-parallel:
A is cut over its columns, B is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from services.trainer.engine import Layout
from services.trainer.megatron.architecture import Architecture

Kind = Literal["qkv", "o", "gate_up", "down", "lm_head"]
GroupKey = tuple[Kind, int] | tuple[Kind, int, int]
"""Kind and layer; of an expert's matrices, its number too."""
LM_HEAD: GroupKey = ("lm_head", 0)


@dataclass(frozen=True, slots=True)
class Part:
    """`module` is PEFT's name of the wrapped layer; sizes are the whole layer's."""

    module: str
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class Group:
    key: GroupKey
    parts: tuple[Part, ...]
    row_parallel: bool


def adapter_groups(model: Architecture, layout: Layout) -> Iterator[Group]:
    """The groups of `layout`, layer by layer, in the canonical order of an adapter's weights."""
    for layer in range(model.layers):
        root = f"base_model.model.model.layers.{layer}"
        if layout.train_attn:
            yield from _attention(model, layer, f"{root}.self_attn")
        if layout.train_mlp:
            yield from _mlp(model, layer, f"{root}.mlp")
    if layout.train_unembed:
        yield Group(LM_HEAD, (Part("base_model.model.lm_head", model.hidden, model.vocab),), row_parallel=False)


def _attention(model: Architecture, layer: int, root: str) -> Iterator[Group]:
    parts = (
        Part(f"{root}.q_proj", model.hidden, model.query_size),
        Part(f"{root}.k_proj", model.hidden, model.kv_size),
        Part(f"{root}.v_proj", model.hidden, model.kv_size),
    )
    yield Group(("qkv", layer), parts, row_parallel=False)
    yield Group(("o", layer), (Part(f"{root}.o_proj", model.query_size, model.hidden),), row_parallel=True)


def _mlp(model: Architecture, layer: int, root: str) -> Iterator[Group]:
    mixture = model.mixture_of(layer)
    if mixture is None:
        yield from _swiglu(("gate_up", layer), ("down", layer), root, model.hidden, model.ffn)
        return
    for expert in range(mixture.experts):
        keys: tuple[GroupKey, GroupKey] = ("gate_up", layer, expert), ("down", layer, expert)
        yield from _swiglu(*keys, f"{root}.experts.{expert}", model.hidden, mixture.ffn)


def _swiglu(gate_up: GroupKey, down: GroupKey, root: str, hidden: int, ffn: int) -> Iterator[Group]:
    yield Group(gate_up, (Part(f"{root}.gate_proj", hidden, ffn), Part(f"{root}.up_proj", hidden, ffn)), False)
    yield Group(down, (Part(f"{root}.down_proj", ffn, hidden),), True)

"""create_model's content against what the pool trains."""

from __future__ import annotations

from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.gateway.validation.numbers import whole
from services.gateway.validation.optimizer import check_optimizer
from services.gateway.wire import bodies
from services.gateway.wire.json_body import INT64_MAX, canonical_json

_PARTS = ("train_attn", "train_mlp", "train_unembed")


def create_model(body: bodies.CreateModel, facts: types.PoolFacts) -> types.CreateModelBody:
    """Raises InvalidInput naming the field and both values."""
    check_optimizer(body.optimizer_config.type, "optimizer_config")
    config = body.lora_config
    created = types.CreateModelBody(
        base_model=facts.base_model,
        layout=_layout(config, facts),
        user_metadata_json=canonical_json(body.user_metadata),
    )
    if config.seed is not None:
        created.seed = whole("lora_config.seed", config.seed, 0, INT64_MAX)
    return created


def _layout(config: bodies.LoraConfig, facts: types.PoolFacts) -> types.AdapterLayout:
    if facts.max_rank == 0:
        raise InvalidInput(f"base_model {facts.base_model} can be sampled but not trained: its pool has no trainer")
    whole("lora_config.rank", config.rank, 1, facts.max_rank)
    wanted = {part: bool(getattr(config, part)) for part in _PARTS}
    for part, on in wanted.items():
        if on and not getattr(facts, part):
            raise InvalidInput(f"lora_config.{part} is true, but this pool trains with {part} = false; set it to false")
    if not any(wanted.values()):
        raise InvalidInput("lora_config: at least one of train_attn, train_mlp and train_unembed must be true")
    return types.AdapterLayout(rank=config.rank, alpha=facts.alpha, **wanted)

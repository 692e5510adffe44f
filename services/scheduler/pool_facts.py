"""What a pool is, and which registrations agree with it."""

from __future__ import annotations

from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.common.ids import is_pool_name

FIXED = ("base_model", "model_fingerprint", "vocab_size", "dtype")
TRAINER_ONLY = (
    "slots",
    "max_rank",
    "alpha",
    "train_attn",
    "train_mlp",
    "train_unembed",
    "losses",
    "unit_token_budget",
)

MEASURED = ("max_datum_tokens", "pass_memory_bytes", "pass_bytes_per_token")
"""By a trainer at its start: they may differ between two of a pool."""


def check_facts(facts: types.PoolFacts) -> None:
    """Raises InvalidInput naming a fact that no registration may lack."""
    if not is_pool_name(facts.pool):
        raise InvalidInput(f"facts.pool: {facts.pool[:80]!r} is not a pool name (a-z 0-9 - _, at most 63)")
    for field in ("base_model", "model_fingerprint", "vocab_size", "max_context", "dtype"):
        if not getattr(facts, field):
            raise InvalidInput(f"facts.{field}: missing; every trainer and sampler states it")


def check_agreement(pool: types.PoolFacts, facts: types.PoolFacts, who: str) -> None:
    """Raises InvalidInput naming the first fact that differs, with both values."""
    for field in FIXED:
        ours, theirs = getattr(pool, field), getattr(facts, field)
        if ours != theirs:
            raise InvalidInput(
                f"facts.{field}: pool {pool.pool} has {ours!r}, {who} has {theirs!r}; start it on the pool's base model"
            )


def check_equal(pool: types.PoolFacts, facts: types.PoolFacts, who: str) -> None:
    """Two trainers of one pool are alike in everything. Raises InvalidInput naming what differs."""
    for field in (*FIXED, *TRAINER_ONLY, "max_context", "aliases", "tokenizer_path", "arch"):
        ours, theirs = getattr(pool, field), getattr(facts, field)
        if ours != theirs:
            raise InvalidInput(
                f"facts.{field}: pool {pool.pool} has {ours!r} with another trainer alive, {who} has {theirs!r}"
            )


def check_context(pool: types.PoolFacts, facts: types.PoolFacts, who: str) -> None:
    """A sampler may take more context than the pool promises, never less."""
    if facts.max_context < pool.max_context:
        raise InvalidInput(
            f"facts.max_context: pool {pool.pool} promises {pool.max_context} tokens, {who} takes {facts.max_context}"
        )


def trainable(facts: types.PoolFacts) -> bool:
    """A pool that only samplers registered so far has no slots."""
    return facts.slots > 0


def provisional(facts: types.PoolFacts) -> types.PoolFacts:
    """A sampler's facts as the pool's, until a trainer states the rest."""
    kept = types.PoolFacts()
    kept.CopyFrom(facts)
    for field in (*TRAINER_ONLY, *MEASURED):
        kept.ClearField(field)  # type: ignore[arg-type]  # names come from the tuple above
    return kept

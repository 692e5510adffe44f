"""What a sampler with a role tells of its cache blocks: two pair only if it is equal."""

from __future__ import annotations

from pathlib import Path

from tinkermesh.v1.sampler_pb2 import KvFacts
from tinkermesh.v1.types_pb2 import PoolFacts

from services.sampler.kv_connector.scope import HASH_ALGORITHM, tier_id
from services.sampler.legs import BOTH
from services.sampler.settings import Settings


def kv_facts(settings: Settings, facts: PoolFacts, engine: str) -> KvFacts | None:
    """None without a tier. Raises Unavailable when the tier's directory cannot be used."""
    if settings.role == BOTH:
        return None
    return KvFacts(
        engine=engine,
        model_fingerprint=facts.model_fingerprint,
        block_size=settings.block_size,
        hash_algorithm=HASH_ALGORITHM,
        hash_seed=settings.kv_hash_seed,
        dtype=settings.dtype,
        tier=tier_id(Path(settings.kv_directory)),
    )

"""Which pool a base model's name means: canonical name, alias or path, with or without ``:suffix``."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput


def match_pool(base_model: str, pools: Sequence[pb.PoolSummary]) -> types.PoolFacts:
    """Raises InvalidInput listing the models this mesh serves."""
    wanted = set(_spellings(base_model))
    for pool in pools:
        names = (pool.facts.base_model, *pool.facts.aliases)
        if not wanted.isdisjoint(spelling for name in names for spelling in (name, posixpath.normpath(name))):
            return pool.facts
    served = ", ".join(sorted({pool.facts.base_model for pool in pools})) or "none yet"
    raise InvalidInput(f"base_model {base_model[:200]!r} is not served by this mesh; it serves: {served}")


def _spellings(base_model: str) -> Iterable[str]:
    head = base_model.partition(":")[0]
    for name in (base_model, head):
        if name:
            yield name
            yield posixpath.normpath(name)


def keeper_of_failed(pools: Sequence[pb.PoolSummary]) -> types.PoolFacts:
    """Any pool may keep a create that fails in its turn; the first by name, so that a retry finds it."""
    return min(pools, key=lambda pool: pool.facts.pool).facts

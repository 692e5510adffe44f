"""From a base model's name to the pool that serves it."""

from __future__ import annotations

from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.scheduler.ports import TrainerDirectory


class Pools:
    def __init__(self, directory: TrainerDirectory) -> None:
        self._directory = directory

    async def of_base_model(self, base_model: str, field: str = "base_model") -> types.PoolFacts:
        """Raises InvalidInput naming `field` and the base models there are."""
        known = await self._directory.pools()
        for name in (base_model, base_model.partition(":")[0]):
            for facts in known:
                if name and name in (facts.base_model, *facts.aliases):
                    return facts
        available = ", ".join(sorted(facts.base_model for facts in known)) or "none yet: no trainer or sampler joined"
        raise InvalidInput(f"{field}: {base_model[:300]!r} is not served here; available: {available}")


def same_base_model(facts: types.PoolFacts, base_model: str) -> bool:
    """Whether `base_model` is a name of the pool's model (aliases, paths and ``:suffix`` forms)."""
    names = (facts.base_model, *facts.aliases)
    return base_model in names or base_model.partition(":")[0] in names

"""Whether anybody will ever take a pool's samples."""

from __future__ import annotations

from services.common.errors import InvalidInput
from services.scheduler.sampling.fleet import SamplerDirectory


class SamplerPresence:
    """A mesh that runs samplers waits for one that is away; where none is to come, nothing waits."""

    def __init__(self, directory: SamplerDirectory, *, expected: bool) -> None:
        self._directory = directory
        self._expected = expected

    async def absence(self, pool: str) -> str:
        """Why samples of `pool` would wait in vain, "" when they would not."""
        if self._expected or await self._directory.samplers(pool):
            return ""
        return f"pool {pool} has no sampler: this mesh only trains; ask its operator to start one"

    async def check(self, pool: str, field: str) -> None:
        """Raises InvalidInput naming `field` where samples would wait in vain."""
        if text := await self.absence(pool):
            raise InvalidInput(f"{field}: {text}")

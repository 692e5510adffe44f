"""What operators change by hand: typed calls of functions/operators.lua, each one atomic transition."""

from __future__ import annotations

from services.common.ids import RequestId
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions


class OperatorStore:
    """`retention_ms`: how long results stay. `valid_ms`: after so long without a registration a sampler is lost.

    Every method raises UnknownId, InUse or ModelClosed for what is not changed, and Unavailable.
    """

    def __init__(self, functions: Functions, *, retention_ms: int, valid_ms: int) -> None:
        self._call = functions.call
        self._retention = retention_ms
        self._valid_ms = valid_ms

    async def unseat(self, pool: str, model_id: str) -> None:
        """The model gives up its slot; base and log bring it back."""
        await self._call("operator_unseat", [keys.pool_prefix(pool)], self._retention, model_id)

    async def close(self, pool: str, model_id: str, reason: str) -> str:
        """closed, or closing while a unit of it runs."""
        answer = await self._call("operator_close", [keys.pool_prefix(pool)], self._retention, model_id, reason)
        return str(answer.decode())

    async def requeue(self, request: RequestId) -> int:
        """What was lost with its trainer or sampler waits again; answers how many requests do."""
        arguments = (self._retention, request.key, str(request), self._valid_ms)
        return int(await self._call("operator_requeue", [keys.pool_prefix(request.pool)], *arguments))

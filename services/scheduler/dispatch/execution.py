"""One unit to its outcome: sent, attached to, or sent again under the same id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import (
    ContractViolation,
    Gone,
    ServerError,
    StaleFence,
    Stopping,
    Unavailable,
    UnknownId,
    UserError,
)
from services.scheduler.dispatch.client import Outcome, TrainerClient
from services.scheduler.dispatch.payload import gather
from services.scheduler.dispatch.tasks import end_tasks
from services.scheduler.dispatch.units import Prepared
from services.scheduler.store.commands import StoredCommand
from services.scheduler.store.payloads import PayloadStore

log = logging.getLogger(__name__)

LIFE_SIGN_SECONDS = 1.0
"""How often it is asked, during a unit, whether its trainer still counts as alive."""
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)


class TrainerLost(Exception):
    """Another incarnation serves the pool now."""


class Execution:
    """The calls of one leader (`term`) to one life of a trainer (`incarnation`)."""

    def __init__(
        self,
        pool: str,
        term: int,
        incarnation: str,
        client: TrainerClient,
        payloads: PayloadStore,
        still_serving: Callable[[str], Awaitable[bool]],
        replaced: Callable[[str], Awaitable[bool]],
        not_run: Callable[[str], Awaitable[None]],
    ) -> None:
        self._pool = pool
        self._term = term
        self._incarnation = incarnation
        self._client = client
        self._payloads = payloads
        self._still_serving = still_serving
        self._replaced = replaced
        self._not_run = not_run

    async def payload(self, prepared: Prepared, stored: dict[str, StoredCommand]) -> bytes | Outcome:
        """The unit's payload, or its outcome when a part of it is lost: then nothing can run."""
        if not prepared.unit.HasField("pass"):
            return b""
        try:
            commands = [stored[key] for key in prepared.keys]
            return await gather(self._pool, getattr(prepared.unit, "pass"), commands, self._payloads)
        except (KeyError, ContractViolation) as error:
            return _refused(prepared, f"payload is lost: {error}")

    async def executed(self, prepared: Prepared, stored: dict[str, StoredCommand], payload: bytes) -> Outcome:
        try:
            return await self._unless_replaced(self._client.execute(prepared.unit, payload))
        except StaleFence:
            raise
        except UserError as error:
            return _refused(prepared, f"trainer refused the unit: {error.message}")
        except ServerError as error:
            log.warning("unit %s: %s; attaching", prepared.unit.unit_id, error)
        return await self.recovered(prepared, stored)

    async def recovered(self, prepared: Prepared, stored: dict[str, StoredCommand]) -> Outcome:
        """The outcome of a unit that may be anywhere between unsent and recorded."""
        attempt = 0
        while True:
            try:
                return await self._attached(prepared, stored)
            except StaleFence:
                raise
            except UserError as error:
                return _refused(prepared, f"trainer refused the unit: {error.message}")
            except Stopping as error:
                log.info("unit %s: %s", prepared.unit.unit_id, error)
                await self._not_run(prepared.unit.unit_id)
            except Unavailable as error:
                log.warning("unit %s: trainer is away: %s", prepared.unit.unit_id, error)
            except ServerError as error:
                log.error("unit %s has no outcome: %s", prepared.unit.unit_id, error)
                return Outcome(pb.UnitOutcome(), b"", error.message)
            if not await self._still_serving(self._incarnation):
                raise TrainerLost(self._incarnation)
            await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
            attempt += 1

    async def _attached(self, prepared: Prepared, stored: dict[str, StoredCommand]) -> Outcome:
        try:
            return await self._unless_replaced(self._client.attach(self.ref(prepared.unit.unit_id)))
        except (UnknownId, Gone):
            payload = await self.payload(prepared, stored)
            if isinstance(payload, Outcome):
                return payload
            return await self._unless_replaced(self._client.execute(prepared.unit, payload))

    async def _unless_replaced(self, call: Coroutine[Any, Any, Outcome]) -> Outcome:
        """A trainer that hangs keeps its connections. Raises TrainerLost once it counts as dead and another lives."""
        task = asyncio.create_task(call)
        try:
            while not (await asyncio.wait({task}, timeout=LIFE_SIGN_SECONDS))[0]:
                if await self._replaced(self._incarnation):
                    raise TrainerLost(self._incarnation)
            return task.result()
        finally:
            await end_tasks([task])

    def ref(self, unit_id: str) -> pb.UnitRef:
        return pb.UnitRef(term=self._term, incarnation=self._incarnation, unit_id=unit_id)


def _refused(prepared: Prepared, message: str) -> Outcome:
    """The outcome of a unit that could not run as it stands: nothing of it took effect."""
    failed = types.Failure(category=types.FAILURE_CATEGORY_SERVER, message=message)
    return Outcome(pb.UnitOutcome(unit_id=prepared.unit.unit_id, failure=failed), b"")

"""What operators change: each an atomic transition of functions/*.lua with a line in the audit log, refusals too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tinkermesh.v1 import admin_pb2 as pb

from services.common.audit import AUDIT
from services.common.errors import InvalidInput, TinkermeshError, UnknownId
from services.common.ids import parse_request_id
from services.scheduler.directory import Directory
from services.scheduler.store.operations import OperatorStore
from services.scheduler.store.overview import Overview
from services.scheduler.store.registry import RegistryStore

LONGEST_REASON = 500
LONGEST_NAME = 300


class Changes:
    """`peer`: from where the call came, for the audit log."""

    def __init__(self, store: OperatorStore, registry: RegistryStore, directory: Directory, overview: Overview) -> None:
        self._store = store
        self._registry = registry
        self._directory = directory
        self._overview = overview

    async def drain(self, pool: str, trainer_id: str, peer: str, *, on: bool) -> None:
        """Raises InvalidInput, UnknownId."""
        _check_name("pool", pool)
        _check_name("trainer_id", trainer_id)
        with audited("drain" if on else "resume", peer, pool=pool, trainer=trainer_id):
            await self._registry.drain(pool, trainer_id, on=on)
        self._directory.refresh(pool)

    async def drain_sampler(self, pool: str, sampler_id: str, peer: str, *, on: bool) -> None:
        """Raises InvalidInput, UnknownId."""
        _check_name("pool", pool)
        _check_name("sampler_id", sampler_id)
        with audited("drain" if on else "resume", peer, pool=pool, sampler=sampler_id):
            await self._registry.drain(pool, sampler_id, on=on, kind="samplers")
        self._directory.refresh(pool)

    async def evict(self, request: pb.EvictModelRequest, peer: str) -> str:
        """unseated, closed or closing. Raises InvalidInput, UnknownId, ModelClosed, InUse."""
        _check_name("pool", request.pool)
        _check_name("model_id", request.model_id)
        said = "close" if request.close else "unseat"
        reason = _reason(request) if request.close else request.reason[:LONGEST_REASON]
        with audited(said, peer, pool=request.pool, model=request.model_id, reason=reason):
            pool = request.pool or await self._pool_of(request.model_id)
            if request.close:
                return await self._store.close(pool, request.model_id, f"closed by the operator: {reason}")
            await self._store.unseat(pool, request.model_id)
            return "unseated"

    async def requeue(self, request_id: str, peer: str) -> int:
        """How many requests wait again. Raises UnknownId, InUse."""
        with audited("requeue", peer, request=request_id):
            return await self._store.requeue(parse_request_id(request_id))

    async def _pool_of(self, model_id: str) -> str:
        for pool in await self._registry.pools():
            if (await self._overview.models(pool, [model_id], ("tenant",)))[0]["tenant"]:
                return pool
        raise UnknownId(f"model_id {model_id[:200]!r} is not known; ListModels names those that live")


def _check_name(field: str, name: str) -> None:
    """Names are repeated in texts and keys. Raises InvalidInput."""
    if len(name) > LONGEST_NAME:
        raise InvalidInput(f"{field}: {len(name)} characters, the limit is {LONGEST_NAME}")


def _reason(request: pb.EvictModelRequest) -> str:
    """One line. Raises InvalidInput."""
    reason = " ".join(request.reason.split())
    if not reason:
        raise InvalidInput("reason: missing; the model's client is told why it was closed")
    if len(reason) > LONGEST_REASON:
        raise InvalidInput(f"reason: {len(reason)} characters, the limit is {LONGEST_REASON}")
    return reason


@contextmanager
def audited(what: str, peer: str, **subject: str) -> Iterator[None]:
    """Around a change: one line in the audit log, of a refusal too."""
    fields = {"op": what, "peer": peer, **{name: value[:LONGEST_REASON] for name, value in subject.items() if value}}
    try:
        yield
    except TinkermeshError as error:
        AUDIT.info("%s refused", what, extra={"fields": {"decision": f"refused: {error.message}", **fields}})
        raise
    AUDIT.info("%s done", what, extra={"fields": {"decision": "done", **fields}})

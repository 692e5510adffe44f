"""Results as the gateway gets them: one serialized v1.Result, put together from what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tinkermesh.v1 import types_pb2 as types

from services.common.errors import ContractViolation, Forbidden, Gone, Pending, UnknownId
from services.common.ids import RequestId, parse_request_id
from services.scheduler.store.requests import Head, Reading, RequestReader, ResultParts

INLINE_BYTES = 32 << 10
_LOOKS = 3


class Results:
    """Reads results with ownership checked."""

    def __init__(self, reader: RequestReader, *, delivered_grace_ms: int) -> None:
        self._reader = reader
        self._grace_ms = delivered_grace_ms

    async def whole(self, request_id: str, tenant_id: str) -> bytes:
        """A settled request's serialized v1.Result. Raises Gone, Forbidden, Pending."""
        request = _parsed(request_id)
        head = await self._head(request)
        if head.tenant_id != tenant_id:
            raise Forbidden(f"request_id {request_id} belongs to another tenant")
        if not head.settled:
            raise Pending(f"request_id {request_id} is not settled yet")
        return await self.stored(request)

    async def stored(self, request: RequestId) -> bytes:
        """Of a settled one, whoever asks. Raises Gone."""
        for _ in range(_LOOKS):
            parts = (await self._reader.results([request]))[0]
            if parts.is_uploaded and (data := await self._reader.uploaded(request.pool, parts)) is not None:
                return data
            if not parts.is_uploaded and not parts.missing:
                return parts.whole or _stored(request, parts).SerializeToString()
            await self._head(request)  # expired meanwhile, or just moved to where the next look finds it
        if parts.is_uploaded:
            raise Gone(f"request_id {request}: its result has expired")
        raise ContractViolation(f"request {request} is settled without a result")

    async def delivered(self, request_id: str) -> None:
        """Its client has the whole of it: it goes after the grace, if that is sooner. Raises Unavailable."""
        await self._reader.delivered(_parsed(request_id), self._grace_ms)

    async def _head(self, request: RequestId) -> Head:
        head = (await self._reader.heads([request]))[0]
        if head is None:
            raise Gone(f"request_id {request} is unknown or its result has expired")
        return head

    async def answers(self, requests: Sequence[RequestId]) -> list[tuple[Head | None, types.Result | None]]:
        """What decides each request's answer, and its result where it is settled and small; `whole` reads others."""
        readings = await self._reader.readings(requests, INLINE_BYTES)
        return [(found.head, _small(request, found)) for request, found in zip(requests, readings, strict=True)]


def _parsed(request_id: str) -> RequestId:
    try:
        return parse_request_id(request_id)
    except UnknownId as error:
        raise Gone(error.message) from error


def _small(request: RequestId, found: Reading) -> types.Result | None:
    return None if found.head is None or found.parts is None else _stored(request, found.parts)


def _stored(request: RequestId, parts: ResultParts) -> types.Result:
    if parts.whole is not None:
        return types.Result.FromString(parts.whole)
    if not parts.batch:
        raise ContractViolation(f"request {request} is settled without a result")
    return types.Result(batch=join_batches([types.BatchResult.FromString(parts.batch[i]) for i in sorted(parts.batch)]))


def join_batches(parts: Sequence[types.BatchResult]) -> types.BatchResult:
    """One result out of parts in the request's own datum order; losses add up."""
    whole = types.BatchResult(loss_sum=sum(part.loss_sum for part in parts))
    for part in parts:
        whole.columns.extend(len(whole.lengths) + index for index in part.columns)
        whole.datum_losses.extend(part.datum_losses)
        whole.lengths.extend(part.lengths)
        whole.widths.extend(part.widths)
    whole.logprobs = b"".join(part.logprobs for part in parts)
    whole.metrics.update(join_metrics([(part.metrics, len(part.lengths)) for part in parts]))
    return whole


def join_metrics(parts: Sequence[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """Metrics named ``what:reduction``: sums add, means weigh by datums, min and max choose."""
    names = dict.fromkeys(name for metrics, _ in parts for name in metrics)
    return {name: _reduce(name, [(m[name], n) for m, n in parts if name in m]) for name in names}


def _reduce(name: str, values: Iterable[tuple[float, int]]) -> float:
    numbers, weights = zip(*values, strict=True)
    reduction = name.rpartition(":")[2]
    if reduction == "sum":
        return float(sum(numbers))
    if reduction == "mean":
        total = sum(weights) or 1
        return float(sum(number * weight for number, weight in zip(numbers, weights, strict=True)) / total)
    if reduction in ("min", "max"):
        return float(min(numbers) if reduction == "min" else max(numbers))
    return float(next(iter(numbers)))

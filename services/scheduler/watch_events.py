"""What a waiter is told."""

from __future__ import annotations

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.store.requests import Head


def final_event(
    request_id: str, tenant_id: str, head: Head | None, result: types.Result | None
) -> pb.WatchEvent | None:
    """The final answer to one waiter, or None while the request is pending."""
    if head is None:
        return event(request_id, tenant_id, pb.WATCH_STATE_UNKNOWN)
    if head.tenant_id != tenant_id:
        return event(request_id, tenant_id, pb.WATCH_STATE_FOREIGN)
    if not head.settled:
        return None
    answer = event(request_id, tenant_id, pb.WATCH_STATE_SETTLED)
    answer.result_bytes = head.result_bytes
    if result is not None:
        answer.result.CopyFrom(result)
    return answer


def event(request_id: str, tenant_id: str, state: pb.WatchState.ValueType) -> pb.WatchEvent:
    return pb.WatchEvent(request_id=request_id, tenant_id=tenant_id, state=state)

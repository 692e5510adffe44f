"""What each live model would be restored from, and which durable points are due."""

from __future__ import annotations

import json

from tinkermesh.v1 import admin_pb2 as pb

from services.scheduler.operations.paging import bounded, page_of
from services.scheduler.store.durables import DurableBook
from services.scheduler.store.overview import Overview, Row

FIELDS = ("tenant", "base", "base_pos", "log_end", "log_bytes", "steps_since", "durable_ms")


class DurablePointList:
    def __init__(self, overview: Overview, book: DurableBook) -> None:
        self._overview = overview
        self._book = book

    async def report(self, pools: list[str], request: pb.ListDurablePointsRequest) -> pb.ListDurablePointsReply:
        """Raises InvalidInput."""
        page, cursor = await page_of(pools, self._overview.live_models, request.cursor, bounded(request.limit))
        now_ms = await self._overview.now_ms()
        reply = pb.ListDurablePointsReply(next_cursor=cursor)
        for pool in dict.fromkeys(pool for pool, _ in page):
            models = [model_id for named, model_id in page if named == pool]
            rows = await self._overview.models(pool, models, FIELDS)
            due, running = await self._book.due(pool, models), await self._book.running(pool)
            for model_id, row, at in zip(models, rows, due, strict=True):
                report = _report(pool, model_id, row, now_ms)
                report.running_unit = running.get(model_id, "")
                if at is not None:
                    report.due_in_ms = at - now_ms
                reply.points.append(report)
        return reply


def _report(pool: str, model_id: str, row: Row, now_ms: int) -> pb.DurablePointReport:
    base = json.loads(row["base"]) if row["base"] else {}
    kind, covers = str(base.get("kind", "")), int(row["base_pos"] or 0)
    return pb.DurablePointReport(
        pool=pool,
        model_id=model_id,
        tenant_id=row["tenant"],
        base=kind,
        directory=str(base.get("directory", "")),
        covers=covers,
        age_ms=now_ms - int(row["durable_ms"]) if kind == "durable" and row["durable_ms"] else 0,
        log_entries=max(0, int(row["log_end"] or 0) - covers),
        log_bytes=max(0, int(row["log_bytes"] or 0)),
        steps_since=max(0, int(row["steps_since"] or 0)),
    )

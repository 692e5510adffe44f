"""How recovery gets on, told to the log and, as one trace per model, to the operator."""

from __future__ import annotations

import logging
import secrets

from services.common import telemetry
from services.common.clock import now_ms
from services.scheduler.core.seats import RecoveryView

log = logging.getLogger(__name__)


class Progress:
    """Models whose slots this leader fills, since when."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._since: dict[str, int] = {}
        self._entries: dict[str, int] = {}

    def seating(self, model_id: str) -> None:
        self._since.setdefault(model_id, now_ms())
        self._entries.setdefault(model_id, 0)

    def seen(self, view: RecoveryView) -> None:
        """What is not recovering any more is live, closed, or has lost its seat again."""
        under_way = {queue.model_id: queue for queue in view.recovering}
        for model_id, queue in under_way.items():
            self.seating(model_id)
            self._entries[model_id] = max(self._entries[model_id], queue.entries[-1].position if queue.entries else 0)
        for model_id in [model for model in self._since if model not in under_way]:
            self._over(model_id)

    def _over(self, model_id: str) -> None:
        started, ended = self._since.pop(model_id), now_ms()
        last = self._entries.pop(model_id)
        log.info("the recovery of model %s ended after %.2f s", model_id, (ended - started) / 1000)
        attributes: telemetry.Attributes = {"pool": self._pool, "model_id": model_id, "log.position": last}
        parent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01" if telemetry.enabled() else ""
        telemetry.record_span("scheduler.recover", parent, started, ended, attributes)

"""Small counts the gateway keeps about what it saw, and warnings that are said once."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict

from services.gateway import metrics

log = logging.getLogger(__name__)

_REMEMBERED_MODELS = 10_000


class DroppedInputs:
    """Loss inputs that clients send and the chosen loss does not read."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self._warned: OrderedDict[str, None] = OrderedDict()

    def note(self, model_id: str, loss_fn: str, dropped: dict[str, int]) -> None:
        """Count, and warn once per model."""
        if not dropped:
            return
        self.total.update(dropped)
        metrics.dropped(dropped)
        if model_id in self._warned:
            return
        self._warned[model_id] = None
        if len(self._warned) > _REMEMBERED_MODELS:
            self._warned.popitem(last=False)
        names = ", ".join(sorted(dropped))
        log.warning("model %s sends loss inputs that %s does not read; they are dropped: %s", model_id, loss_fn, names)

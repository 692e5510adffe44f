"""The state of this replica's front: whether it admits work, and whether clients reach it."""

from __future__ import annotations

import time
from collections.abc import Callable

from services.common.errors import Unavailable

SEEN_SECONDS = 15.0


class Front:
    """`open_streams` counts the gateways whose Watch stream is open here."""

    def __init__(self, open_streams: Callable[[], int] = lambda: 0) -> None:
        self._open_streams = open_streams
        self._seen_at = float("-inf")
        self._admits = True

    def seen(self) -> None:
        self._seen_at = time.monotonic()

    def admit(self) -> None:
        """A call that makes new work. Raises Unavailable once the replica is on its way out."""
        self.seen()
        if not self._admits:
            raise Unavailable("this scheduler is shutting down; another replica takes the request")

    def stop_admission(self) -> None:
        self._admits = False

    def clients_can_beat(self) -> bool:
        return self._open_streams() > 0 or time.monotonic() - self._seen_at < SEEN_SECONDS

"""The end of a session."""

from __future__ import annotations

from contextlib import suppress

import tinker

CLOSE_SECONDS = 15.0


def close(service: tinker.ServiceClient) -> None:
    """The mesh is told at once; SDK 0.38 may then wait for its own telemetry for ever (docs/sdk-matrix.md)."""
    with suppress(TimeoutError):
        service.close("success").result(CLOSE_SECONDS)

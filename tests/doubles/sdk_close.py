"""The end of an SDK session, which SDK 0.38 can wait for longer than the mesh has anything to do with it.

`ServiceClient.close` first tells the mesh, then cancels its background tasks and waits for them. Its HTTP transport
loses a cancellation that meets a request under way (they leave every ten seconds), and the task goes on: the
heartbeat ends at its next beat (410), the telemetry never. docs/sdk-matrix.md tells users.
"""

from __future__ import annotations

import warnings
from typing import Any

CLOSE_SECONDS = 30.0


def close(service: Any, seconds: float = CLOSE_SECONDS) -> None:
    """Raises TimeoutError when the mesh did not answer in `seconds`."""
    try:
        service.close("success").result(seconds)
    except TimeoutError:
        if not _only_telemetry_is_left(service):
            raise
        warnings.warn("the SDK lost the cancellation of its telemetry; the mesh had ended the session", stacklevel=2)


def _only_telemetry_is_left(service: Any) -> bool:
    """It is the last that `close` cancels: the mesh has answered long before."""
    telemetry = service.get_telemetry()
    task = telemetry and telemetry._task
    return bool(task and task.cancelling())

"""``python -m services.scheduler``: one replica; settings come from TINKERMESH_SCHEDULER_<FIELD>."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from services.common import logs, telemetry
from services.common.errors import TinkermeshError
from services.common.settings import from_environment
from services.scheduler.app import run
from services.scheduler.settings import Settings

log = logging.getLogger("services.scheduler")


def main() -> int:
    """The exit code: 0 after a signal, 1 with the cause in the log otherwise."""
    logs.configure("scheduler")
    try:
        settings = from_environment(Settings, "scheduler", os.environ)
        logs.configure("scheduler", settings.log_level)
        telemetry.configure("scheduler", settings.replica)
        asyncio.run(run(settings))
    except TinkermeshError as error:
        log.critical("the scheduler ends: %s", error.message)
        return 1
    except Exception:  # noqa: BLE001 - the process boundary
        log.critical("the scheduler ends after an unexpected error", exc_info=True)
        return 1
    finally:
        telemetry.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m services.scheduler``: one replica; settings come from TINKERMESH_SCHEDULER_<FIELD>."""

from __future__ import annotations

import asyncio
import sys

from services.common.metrics_server import serving
from services.common.process import service_main
from services.scheduler.app import run
from services.scheduler.metrics import SCHEDULER
from services.scheduler.settings import Settings


def main() -> int:
    return service_main("scheduler", Settings, lambda settings: settings.replica, _run)


def _run(settings: Settings) -> None:
    with serving("scheduler", settings, SCHEDULER):
        asyncio.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())

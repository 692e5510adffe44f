"""``python -m services.scheduler``: one replica; settings come from TINKERMESH_SCHEDULER_<FIELD>."""

from __future__ import annotations

import asyncio
import sys

from services.common.process import service_main
from services.scheduler.app import run
from services.scheduler.settings import Settings


def main() -> int:
    return service_main(
        "scheduler", Settings, lambda settings: settings.replica, lambda settings: asyncio.run(run(settings))
    )


if __name__ == "__main__":
    sys.exit(main())

"""``python -m services.trainer``: one trainer rank; settings come from TINKERMESH_TRAINER_<FIELD>."""

from __future__ import annotations

import logging
import os
import sys

from services.common import logs, telemetry
from services.common.errors import TinkermeshError
from services.common.settings import from_environment
from services.trainer.app import run
from services.trainer.settings import Settings

log = logging.getLogger("services.trainer")


def main() -> int:
    """The exit code: 0 after a signal, 1 with the cause in the log otherwise."""
    logs.configure("trainer")
    try:
        settings = from_environment(Settings, "trainer", os.environ)
        logs.configure("trainer", settings.log_level)
        telemetry.configure("trainer", f"{settings.trainer_id or 'trainer'}-{settings.rank}")
        run(settings)
    except TinkermeshError as error:
        log.critical("trainer ends: %s", error.message)
        return 1
    except Exception:  # noqa: BLE001 - the process boundary
        log.critical("trainer ends after an unexpected error", exc_info=True)
        return 1
    finally:
        telemetry.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())

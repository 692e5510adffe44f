"""``python -m services.trainer``: one trainer rank; settings come from TINKERMESH_TRAINER_<FIELD>."""

from __future__ import annotations

import sys

from services.common.process import service_main
from services.trainer.app import run
from services.trainer.settings import Settings


def main() -> int:
    return service_main(
        "trainer", Settings, lambda settings: f"{settings.trainer_id or 'trainer'}-{settings.rank}", run
    )


if __name__ == "__main__":
    sys.exit(main())

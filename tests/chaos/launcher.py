"""Runs a service with the points of `tests.chaos.seams`: ``python -m tests.chaos.launcher MODULE [ARGUMENT...]``.

TINKERMESH_CHAOS_DIRECTORY and TINKERMESH_CHAOS_PROCESS say where its arms are; TINKERMESH_CHAOS_KEEP_ROWS_MS
shortens how long a scheduler keeps rows of closed models and leftovers of durable points, which no setting does;
TINKERMESH_CHAOS_PLANT names a fault of `tests.chaos.plants`.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from tests.chaos.plants import plant
from tests.chaos.points import Points
from tests.chaos.seams import install

DIRECTORY, PROCESS = "TINKERMESH_CHAOS_DIRECTORY", "TINKERMESH_CHAOS_PROCESS"
KEEP_ROWS, PLANT = "TINKERMESH_CHAOS_KEEP_ROWS_MS", "TINKERMESH_CHAOS_PLANT"

REPAIR_SECONDS = 3.0
ORPHAN_SECONDS = 5.0


def main() -> None:
    module = sys.argv[1]
    install(module, Points(Path(os.environ[DIRECTORY]), os.environ[PROCESS]))
    if module == "services.scheduler" and KEEP_ROWS in os.environ:
        _keep_rows(int(os.environ[KEEP_ROWS]))
    if module == "tests.doubles.fake_trainer" and PLANT in os.environ:
        plant(os.environ[PLANT])
    sys.argv = sys.argv[1:]
    # Imported, not run as a script: that would make its classes anew, without the points.
    entry = f"{module}.__main__" if module.startswith("services.") else module
    sys.exit(importlib.import_module(entry).main())


def _keep_rows(milliseconds: int) -> None:
    """And the files of unsettled durable points for a few seconds instead of an hour."""
    from services.scheduler.dispatch.durable_sweeper import DurableSweeper
    from services.scheduler.dispatch.sweeper import Sweeper

    _default(Sweeper, "keep_rows_ms", milliseconds)
    _default(Sweeper, "repair_seconds", REPAIR_SECONDS)
    _default(DurableSweeper, "orphan_seconds", ORPHAN_SECONDS)


def _default(owner: Any, name: str, value: float) -> None:
    defaults = owner.__init__.__kwdefaults__
    assert name in defaults
    defaults[name] = value


if __name__ == "__main__":
    main()

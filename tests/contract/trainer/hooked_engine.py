"""The real engine with hooks for tests: it waits while a file is there, poison fails a pass, passes are noted.

The variable TINKERMESH_TEST_HOOKS names a directory. While `hold` is in it passes wait; while `hold_publish`
is, so does a save, its files written and nothing published; while `fail_unload` is, no slot is cleared. `passes` gets
one line per pass: datums, and whether it went well. Tests alone start a trainer with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.trainer import checkpoint
from services.trainer.engine import DatumResult, Engine, EngineSpec, Loss, SlotDatum
from services.trainer.megatron import build_engine
from services.trainer.megatron.packing import MicroBatch

VARIABLE = "TINKERMESH_TEST_HOOKS"
POISON = 511
"""A datum that starts with this token makes its micro-batch fail, after those before it have run."""
HOLD_SECONDS = 60.0


def build(spec: EngineSpec) -> Engine:
    engine = build_engine(spec)
    hooks = Path(os.environ[VARIABLE])
    run, run_batch = engine.run_pass, engine._passes._run_batch  # type: ignore[attr-defined]

    def run_pass(datums: Sequence[SlotDatum], loss: Loss, *, backward: bool) -> list[DatumResult]:
        (hooks / "reached").touch()
        _wait_while(hooks / "hold")
        went = "failed"
        try:
            results = run(datums, loss, backward=backward)
            went = "done"
            return results
        finally:
            with (hooks / "passes").open("a") as file:
                file.write(f"{len(datums)} {went}\n")

    def poisoned(batch: MicroBatch, *rest: object) -> None:
        run_batch(batch, *rest)
        if any(int(work.item.datum.tokens[0]) == POISON for work in batch.works):
            raise RuntimeError("poison")

    clear = engine.clear_slot

    def clear_slot(slot: int) -> None:
        if (hooks / "fail_unload").exists():
            raise RuntimeError("the slot cannot be cleared")
        clear(slot)

    engine.clear_slot = clear_slot  # type: ignore[method-assign]
    _hold_publications(hooks / "hold_publish", hooks / "publishing")
    engine.run_pass = run_pass  # type: ignore[method-assign]
    engine._passes._run_batch = poisoned  # type: ignore[attr-defined]
    return engine


def _hold_publications(hold: Path, reached: Path) -> None:
    write = checkpoint.write

    def held(directory: Path, *rest: Any) -> None:
        write(directory, *rest)
        reached.touch()
        _wait_while(hold)

    checkpoint.write = held


def _wait_while(path: Path) -> None:
    ends = time.monotonic() + HOLD_SECONDS
    while path.exists() and time.monotonic() < ends:
        time.sleep(0.005)

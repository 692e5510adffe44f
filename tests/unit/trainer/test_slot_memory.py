"""OPT-09: what the engine says slots and captures take, against what the process really grows by."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.trainer.engine import Layout
from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.engine import EngineConfig, MegatronEngine
from services.trainer.megatron.lora.plan import canonical_names
from services.trainer.megatron.memory import cgroup_room

REPOSITORY = Path(__file__).resolve().parents[3]
SLOTS, RANK = 4, 512
TOLERANCE = 0.1

# A process of its own: freed memory stays with it. The rank is large beside the model, so that slots outweigh passes.
CHILD = """
import json, sys
from pathlib import Path
import numpy as np
from services.common.datum_blocks import Datum
from services.trainer.engine import Adam, Layout, Loss, SlotDatum
from services.trainer.megatron.engine import EngineConfig, MegatronEngine
from services.trainer.megatron.memory import _status

slots, rank = int(sys.argv[2]), int(sys.argv[3])
engine = MegatronEngine(EngineConfig(Path(sys.argv[1]), slots=slots, max_rank=rank, threads=1))
targets = np.zeros((8, 1), np.int32)
datum = Datum(targets[:, 0], targets, {"weights": np.ones((8, 1), np.float32)})

def use(slot, layout):
    engine.init_slot(slot, layout, slot)
    for _ in range(2):
        for _ in range(2):  # a window, and a pass beside it
            engine.run_pass([SlotDatum(slot, datum)], Loss("cross_entropy", {}), backward=True)
        engine.optim_steps([(slot, Adam(1e-3, 0.9, 0.95, 1e-8, 0.0, 0.0))])
    engine.run_pass([SlotDatum(slot, datum)], Loss("cross_entropy", {}), backward=True)
    assert engine.window_open(slot)

def grown(do):
    before = _status("VmRSS")
    kept = do()
    return _status("VmRSS") - before, kept

def fill(layout, numbers):
    return grown(lambda: [use(slot, layout) for slot in numbers])[0]

use(0, Layout(8, 32.0, True, True, True))
engine.clear_slot(0)
seen = {"slot": engine.slot_memory().slot, "image": engine.slot_memory().image}
largest = Layout(rank, 32.0, True, True, True)
seen["half"] = fill(largest, range(slots // 2))
seen["slots"] = seen["half"] + fill(largest, range(slots // 2, slots))
seen["images"], images = grown(lambda: [engine.capture(slot, moments=True) for slot in range(slots)])
del images
def replace(layout, left):
    for slot in range(slots - left):
        engine.clear_slot(slot)
        use(slot, layout)
seen["other_layouts"] = grown(lambda: [replace(Layout(rank - n, 32.0, True, True, True), n) for n in (1, 2, 3)])[0]
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(model_dir: Callable[[str], Path]) -> dict[str, Any]:
    command = [sys.executable, "-c", CHILD, str(model_dir("qwen3")), str(SLOTS), str(RANK)]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout.splitlines()[-1]))


linux = pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")


@linux
def test_slots_in_full_use_take_what_the_formula_says_OPT_09(seen: dict[str, Any]) -> None:
    assert seen["slots"] / (SLOTS * seen["slot"]) == pytest.approx(1.0, abs=TOLERANCE)


@linux
def test_half_the_slots_take_half_and_would_not_pass_for_all_OPT_09(seen: dict[str, Any]) -> None:
    """Negative control: the ratio tells them apart, and so it would a forgotten pair of moments."""
    assert seen["half"] / (SLOTS * seen["slot"]) == pytest.approx(0.5, abs=TOLERANCE)
    without_moments = 3 / 5
    assert abs(seen["slots"] / (SLOTS * seen["slot"] * without_moments) - 1.0) > TOLERANCE


@linux
def test_captures_take_what_the_formula_says_OPT_09(seen: dict[str, Any]) -> None:
    assert seen["images"] / (SLOTS * seen["image"]) == pytest.approx(1.0, abs=TOLERANCE)


@linux
def test_slots_that_change_their_layouts_do_not_add_up_OPT_09(seen: dict[str, Any]) -> None:
    """Rows of emptied slots go back to the system: were each layout's kept, they would make another slot or two."""
    assert seen["other_layouts"] <= TOLERANCE * SLOTS * seen["slot"]


def test_the_formula_is_twenty_bytes_a_parameter_and_twelve_a_capture_OPT_09(model_dir: Callable[[str], Path]) -> None:
    """docs/sizing.md says so; bfloat16 adds the copy that passes read."""
    facts = read_architecture(model_dir("qwen3"))
    shapes = canonical_names(facts, Layout(16, 32.0, True, True, True)).values()
    parameters = sum(rows * columns for rows, columns in shapes)
    for dtype, each in (("float32", 20), ("bfloat16", 22)):
        memory = MegatronEngine(EngineConfig(model_dir("qwen3"), max_rank=16, dtype=dtype)).slot_memory()
        assert (memory.slot, memory.image) == (each * parameters, 12 * parameters)


def test_an_emptied_slots_rows_are_zero_when_they_are_used_again(engine: MegatronEngine) -> None:
    layout = Layout(8, 32.0, True, True, True)
    for slot in (0, 1):
        engine.init_slot(slot, layout, seed=slot)
    arena = engine.slots.arena(0)
    neighbour = engine.slot_digest(1)
    for row in arena.rows(0):
        row.fill_(7.0)
    engine.clear_slot(0)
    assert all(not row.any() for row in arena.rows(0))
    assert engine.slot_digest(1) == neighbour


def test_files_that_were_read_do_not_count_as_taken_in_a_control_group(tmp_path: Path) -> None:
    for name, text in (("max", "1000"), ("current", "900"), ("stat", "anon 300\ninactive_file 600\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert cgroup_room(tmp_path, "memory.max", "memory.current", "inactive_file") == 700
    (tmp_path / "memory.max").write_text("max")
    assert cgroup_room(tmp_path, "memory.max", "memory.current", "inactive_file") == sys.maxsize

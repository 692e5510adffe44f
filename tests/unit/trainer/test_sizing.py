"""docs/sizing.md's formulas of slots and of the store, against what an engine and its checkpoints really take."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tinkermesh.v1 import trainer_pb2 as pb

from services.common.tinker_path import SAMPLER_WEIGHTS, WEIGHTS
from services.trainer import checkpoint
from services.trainer.engine import Layout
from services.trainer.megatron.engine import MegatronEngine
from services.trainer.megatron.lora.plan import plan_adapter
from services.trainer.megatron.lora.slots import slot_bytes
from tests.doubles.sizing import bytes_of
from tests.unit.trainer.rig import ADAM, CROSS_ENTROPY, on_slot, supervised

RANKS = (4, 32)
TOLERANCE = 0.1


# A of these is cut by no rank, nor is B of the others.
BY_COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")


def parameters(engine: MegatronEngine, rank: int) -> dict[str, int]:
    shapes = engine.expected_shapes(Layout(rank, 32.0, True, True, True)).values()
    return {"P": sum(math.prod(shape) for shape in shapes), "matrices": len(shapes)}


def whole(engine: MegatronEngine, rank: int) -> int:
    shapes = engine.expected_shapes(Layout(rank, 32.0, True, True, True))
    sides = {name: "lora_A" if name.split(".")[-3] in BY_COLUMNS else "lora_B" for name in shapes}
    return sum(math.prod(shape) for name, shape in shapes.items() if sides[name] in name)


@pytest.fixture
def trained(engine_for: Callable[..., MegatronEngine]) -> MegatronEngine:
    """Slot n holds an adapter of RANKS[n] after a step."""
    engine = engine_for("qwen3", max_rank=max(RANKS))
    for slot, rank in enumerate(RANKS):
        engine.init_slot(slot, Layout(rank, 32.0, True, True, True), seed=slot)
        engine.run_pass(on_slot(slot, supervised(1, 8)), CROSS_ENTROPY, backward=True)
        engine.optim_steps([(slot, ADAM)])
    return engine


def written(engine: MegatronEngine, slot: int, directory: Path, *, moments: bool) -> int:
    """Bytes of the files of a checkpoint or snapshot."""
    directory.mkdir()
    kind = WEIGHTS if moments else SAMPLER_WEIGHTS
    meta = pb.ArtifactMeta(tenant_id="t" * 32, model_id="m" * 40, kind=kind, name="end", base_model="a/b")
    checkpoint.write(directory, engine.capture(slot, moments=moments), meta, 1, checkpoint.Origin())
    return sum(file.stat().st_size for file in directory.iterdir())


@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe"])
def test_slot_and_capture_OPT_09(name: str, engine_for: Callable[..., MegatronEngine]) -> None:
    """What the process really grows by is in test_slot_memory.py."""
    engine = engine_for(name, max_rank=16)
    told, adapter = engine.slot_memory(), parameters(engine, 16)
    kept = {"P": adapter["P"], "W": whole(engine, 16)}
    assert bytes_of("slot", **kept, tp=1) == told.slot
    plan = plan_adapter(engine.facts, Layout(16, 16.0, True, True, True), 2)
    assert bytes_of("slot", **kept, tp=2) == slot_bytes(plan, torch.float32)
    assert bytes_of("capture", P=adapter["P"]) == told.image


@pytest.mark.parametrize(("what", "moments"), [("checkpoint", True), ("durable point", True), ("snapshot", False)])
def test_files_in_the_store_have_the_size_of_the_formula(
    trained: MegatronEngine, tmp_path: Path, what: str, moments: bool
) -> None:
    for slot, rank in enumerate(RANKS):
        size = written(trained, slot, tmp_path / str(rank), moments=moments)
        assert size / bytes_of(what, **parameters(trained, rank)) == pytest.approx(1.0, abs=TOLERANCE), rank


def test_a_checkpoint_is_told_from_a_snapshot_by_its_size(trained: MegatronEngine, tmp_path: Path) -> None:
    """Negative control: a formula without moments is far off."""
    size = written(trained, 1, tmp_path / "one", moments=True)
    assert size / bytes_of("snapshot", **parameters(trained, RANKS[1])) > 2

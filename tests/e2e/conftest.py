"""One real mesh for the whole session: Megatron trainer and vLLM sampler on the tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.mesh import RealMeshProcesses
from tools.make_tiny_qwen3 import build


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vocabulary 512, byte-level tokenizer, random weights from a fixed seed."""
    return build(tmp_path_factory.mktemp("model") / "tiny-qwen3")


@pytest.fixture(scope="session")
def real_mesh(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[RealMeshProcesses]:
    """Two gateways, two schedulers, one trainer, one sampler: what `tinkermesh up` starts."""
    with RealMeshProcesses(tmp_path_factory.mktemp("real"), tiny_model, gateways=2, schedulers=2) as mesh:
        yield mesh

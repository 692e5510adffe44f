"""One real mesh for the whole session: Megatron trainer and vLLM sampler on the tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.mesh import RealMeshProcesses
from tests.doubles.otlp import Receiver
from tools.make_tiny_qwen3 import build


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vocabulary 512, byte-level tokenizer, random weights from a fixed seed."""
    return build(tmp_path_factory.mktemp("model") / "tiny-qwen3")


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    """What `real_mesh` exports of its traces."""
    with Receiver() as running:
        yield running


@pytest.fixture(scope="session")
def real_mesh(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, receiver: Receiver
) -> Iterator[RealMeshProcesses]:
    """Two gateways, two schedulers, one trainer, one sampler: what `tinkermesh up` starts."""
    directory, variables = tmp_path_factory.mktemp("real"), {**receiver.environment, "no_proxy": "127.0.0.1"}
    with RealMeshProcesses(directory, tiny_model, gateways=2, schedulers=2, variables=variables) as mesh:
        yield mesh

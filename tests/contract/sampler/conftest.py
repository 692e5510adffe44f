"""One real vLLM for the whole session, on the tiny Qwen3 model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tinkermesh.v1.types_pb2 import AdapterRef

from tests.contract.sampler.adapters import write_adapter
from tests.contract.sampler.client import SamplerClient, SamplerProcess, start_sampler
from tests.contract.sampler.reference import Reference
from tools.make_tiny_qwen3 import build

MAX_ADAPTERS = 4


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("model") / "tiny-qwen3")


@pytest.fixture(scope="session")
def sampler(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SamplerProcess]:
    running = start_sampler(tiny_model, tmp_path_factory.mktemp("sampler"), max_adapters=MAX_ADAPTERS)
    yield running
    children = running.children()
    assert running.stop() == 0, running.log.read_text()[-4000:]
    assert children == []


@pytest.fixture
async def client(sampler: SamplerProcess) -> AsyncIterator[SamplerClient]:
    async with SamplerClient(sampler.address) as connected:
        yield connected


AdapterMaker = Callable[..., AdapterRef]


@pytest.fixture(scope="session")
def make_adapter(sampler: SamplerProcess) -> AdapterMaker:
    """make_adapter(name, seed=…) writes a new version into the sampler's store."""

    def make(name: str, **options: object) -> AdapterRef:
        path = f"runs/{name}/sampler_weights/_version_x_{len(list(sampler.store.rglob('adapter_config.json')))}"
        write_adapter(sampler.model, sampler.store / path, **options)  # type: ignore[arg-type]
        return AdapterRef(name=name, path=path)

    return make


@pytest.fixture(scope="session")
def adapter_a(make_adapter: AdapterMaker) -> AdapterRef:
    return make_adapter("a@1", seed=1, rank=8)


@pytest.fixture(scope="session")
def adapter_b(make_adapter: AdapterMaker) -> AdapterRef:
    return make_adapter("b@1", seed=2, rank=16, alpha=16.0)


@pytest.fixture(scope="session")
def base_reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)


@pytest.fixture(scope="session")
def reference_a(sampler: SamplerProcess, adapter_a: AdapterRef) -> Reference:
    return Reference(sampler.model, sampler.store / adapter_a.path)


@pytest.fixture(scope="session")
def reference_b(sampler: SamplerProcess, adapter_b: AdapterRef) -> Reference:
    return Reference(sampler.model, sampler.store / adapter_b.path)

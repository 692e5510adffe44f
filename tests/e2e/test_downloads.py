"""An export of the real trainer, fetched by a plain HTTP client, is the adapter that PEFT and the cookbook expect."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import tinker
from safetensors.torch import load
from tinker import types

from tests.doubles.mesh import RealMeshProcesses
from tests.doubles.sdk_close import close

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]


@pytest.fixture
def service(real_mesh: RealMeshProcesses, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Closed afterwards: the mesh has eight slots for all tests together."""
    for name, value in real_mesh.environment.items():
        monkeypatch.setenv(name, value)
    client = tinker.ServiceClient()
    yield client
    close(client)


def test_an_export_is_a_peft_adapter(service: Any, real_mesh: RealMeshProcesses) -> None:
    training = service.create_lora_training_client(base_model=real_mesh.settings.model_name, rank=4, seed=5).result()
    prompt = types.ModelInput.from_ints([5, 6, 7])
    target = types.TensorData(data=[6, 7, 8], dtype="int64", shape=[3])
    weights = types.TensorData(data=[1.0] * 3, dtype="float32", shape=[3])
    datum = types.Datum(model_input=prompt, loss_fn_inputs={"target_tokens": target, "weights": weights})
    training.forward_backward([datum], "cross_entropy").result()
    training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    path = training.save_weights_external("export").result().path
    urls = tinker.RestClient().get_external_weights_urls(path).result().urls
    files = {name: urllib.request.urlopen(url, timeout=30).read() for name, url in urls.items()}
    assert set(files) == {"adapter_config.json", "adapter_model.safetensors"}
    config = json.loads(files["adapter_config.json"])
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 32, "LORA")
    tensors = load(files["adapter_model.safetensors"])
    assert all(name.startswith("base_model.model.") for name in tensors)
    moved = [name for name, tensor in tensors.items() if name.endswith("lora_B.weight") and tensor.abs().max() > 0]
    assert moved, "the step before the export is in it"

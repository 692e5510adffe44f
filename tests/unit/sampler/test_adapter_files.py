from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from services.common.errors import InvalidInput, MissingResource
from services.sampler.adapter_files import AdapterFiles
from services.sampler.tensor_shapes import base_linear_shapes, read_shapes
from tests.unit.sampler.doubles import LINEAR, write_adapter

FILES = AdapterFiles(LINEAR, max_rank=16)
WEIGHTS = "adapter_model.safetensors"
Q = "base_model.model.model.layers.0.self_attn.q_proj"


def test_a_valid_adapter_passes(tmp_path: Path) -> None:
    FILES.check(write_adapter(tmp_path / "good"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"peft_type": "LOHA"}, "peft_type"),
        ({"r": 0}, "ranks 1 to 16"),
        ({"r": 17}, "ranks 1 to 16"),
        ({"r": True}, "ranks 1 to 16"),
        ({"r": "8"}, "ranks 1 to 16"),
        ({"lora_alpha": 0}, "lora_alpha"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"bias": "all"}, "biases"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
    ],
)
def test_a_config_that_cannot_be_served_is_named(tmp_path: Path, change: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        FILES.check(write_adapter(tmp_path / "bad", **change))


def test_an_adapter_of_experts_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """Although the base model has those matrices: the engine would serve it without them."""
    module = "model.layers.0.mlp.experts.3.up_proj"
    directory = write_adapter(tmp_path / "bad")
    tensors = load_file(directory / WEIGHTS)
    tensors[f"base_model.model.{module}.lora_A.weight"] = np.zeros((8, 16), np.float32)
    tensors[f"base_model.model.{module}.lora_B.weight"] = np.zeros((32, 8), np.float32)
    save_file(tensors, directory / WEIGHTS)
    with pytest.raises(InvalidInput, match="adapts experts, which samplers do not serve; train without train_mlp"):
        AdapterFiles({**LINEAR, module: (32, 16)}, max_rank=16).check(directory)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe"])
def test_an_unreadable_config_is_said(tmp_path: Path, content: bytes) -> None:
    directory = write_adapter(tmp_path / "bad")
    (directory / "adapter_config.json").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"adapter_config\.json"):
        FILES.check(directory)


@pytest.mark.parametrize("name", ["adapter_config.json", WEIGHTS])
def test_a_missing_file_is_a_missing_resource(tmp_path: Path, name: str) -> None:
    directory = write_adapter(tmp_path / "bad")
    (directory / name).unlink()
    with pytest.raises(MissingResource, match=name):
        FILES.check(directory)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (f"{Q}.lora_A.weight", np.zeros((3, 4), np.float32), "shape"),
        (f"{Q}.lora_A.weight", np.zeros((2, 5), np.float32), "shape"),
        (f"{Q}.lora_A.weight", np.zeros((2, 4), np.int32), "I32"),
        (f"{Q}.lora_A.weight", None, "without its counterpart"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", np.zeros((2, 12), np.float32), "no matrix"),
        ("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", np.zeros((2, 4), np.float32), "no matrix"),
        ("surprise", np.zeros(1, np.float32), "no matrix"),
    ],
)
def test_a_tensor_that_does_not_fit_the_model_is_named(
    tmp_path: Path, name: str, value: np.ndarray | None, text: str
) -> None:
    directory = write_adapter(tmp_path / "bad")
    tensors = {**load_file(directory / WEIGHTS), name: value}
    save_file({key: tensor for key, tensor in tensors.items() if tensor is not None}, directory / WEIGHTS)
    with pytest.raises(InvalidInput, match=text):
        FILES.check(directory)


def test_an_adapter_without_tensors_is_refused(tmp_path: Path) -> None:
    directory = write_adapter(tmp_path / "bad")
    save_file({}, directory / WEIGHTS)
    with pytest.raises(InvalidInput, match="no tensors"):
        FILES.check(directory)


def test_every_truncation_of_the_file_is_noticed(tmp_path: Path) -> None:
    directory = write_adapter(tmp_path / "bad")
    whole = (directory / WEIGHTS).read_bytes()
    for size in range(0, len(whole), 7):
        (directory / WEIGHTS).write_bytes(whole[:size])
        with pytest.raises(InvalidInput, match="not a complete safetensors file"):
            read_shapes(directory / WEIGHTS)
    (directory / WEIGHTS).write_bytes(whole + b"x")
    with pytest.raises(InvalidInput):
        read_shapes(directory / WEIGHTS)


@pytest.mark.parametrize(
    "header",
    [
        {"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}},
        {"t": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
        {"t": {"dtype": "F32", "shape": [2]}},
        {"t": [1, 2]},
        [],
    ],
)
def test_a_header_that_lies_is_noticed(tmp_path: Path, header: object) -> None:
    text = json.dumps(header).encode()
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(InvalidInput, match="not a complete safetensors file"):
        read_shapes(file)


def test_a_tied_model_has_the_embeddings_shape_for_its_unembedding(tmp_path: Path) -> None:
    save_file(
        {"model.embed_tokens.weight": np.zeros((12, 4), np.float32), "model.norm.weight": np.zeros(4, np.float32)},
        tmp_path / "model.safetensors",
    )
    assert base_linear_shapes(tmp_path) == {"model.embed_tokens": (12, 4), "lm_head": (12, 4)}

"""A model's directory without a model: configuration, tokenizer, and weights of zeros in a real safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY, HIDDEN = 64, 4


def build(directory: Path) -> Path:
    directory.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "max_position_embeddings": 128,
    }
    write_json(directory / "config.json", config)
    write_json(directory / "tokenizer.json", tokenizer(VOCABULARY - 1))
    write_json(directory / "tokenizer_config.json", {})
    (directory / "model.safetensors").write_bytes(weights(VOCABULARY))
    return directory


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def tokenizer(largest: int) -> dict[str, Any]:
    return {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": largest, "content": "<end>"}]}


def weights(vocabulary: int) -> bytes:
    size = 4 * vocabulary * HIDDEN
    embedding = {"dtype": "F32", "shape": [vocabulary, HIDDEN], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "model.embed_tokens.weight": embedding}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)

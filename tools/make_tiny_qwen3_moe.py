"""Build the tests' mixture-of-experts model: Qwen3-MoE-style, random weights from a fixed seed.

hidden 64, 4 layers (the third one dense), 8 experts of which a token goes to 3, vocabulary and tokenizer of the
tests' dense model.
Usage: python tools/make_tiny_qwen3_moe.py DIRECTORY
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from tools.make_tiny_qwen3 import VOCABULARY, build_tokenizer, write_random

SEED = 20260102


def build_config(**changes: object) -> Qwen3MoeConfig:
    fields: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "mlp_only_layers": [2],
        "max_position_embeddings": 2048,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 1,
        "dtype": "float32",
    }
    return Qwen3MoeConfig(**(fields | changes))


def build(directory: Path, **changes: object) -> Path:
    """Write the model and its tokenizer to `directory`; the same files every time. `changes`: fields of its config."""
    write_random(Qwen3MoeForCausalLM, build_config(**changes), directory, SEED)
    build_tokenizer().save_pretrained(directory)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    print(build(parser.parse_args().directory))


if __name__ == "__main__":
    main()

"""Small base models for the engine's tests."""

from __future__ import annotations

from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

from tools.make_tiny_qwen3 import VOCABULARY, write_random
from tools.make_tiny_qwen3 import build as build_qwen3
from tools.make_tiny_qwen3_moe import build as build_qwen3_moe


def build_llama(directory: Path, *, tied: bool) -> Path:
    """Llama-style: no q/k norm, three query heads per key/value head, head_dim not hidden / heads."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=0,
        dtype="float32",
    )
    return write_random(LlamaForCausalLM, config, directory, seed=7)


BUILDERS = {
    "qwen3": lambda directory: build_qwen3(directory, tied=False),
    "qwen3-tied": lambda directory: build_qwen3(directory, tied=True),
    "llama": lambda directory: build_llama(directory, tied=False),
    "llama-tied": lambda directory: build_llama(directory, tied=True),
}
MIXTURES = {
    "qwen3-moe": build_qwen3_moe,
    "qwen3-moe-sparse": lambda directory: build_qwen3_moe(directory, mlp_only_layers=[]),
    # Probabilities as they are, every second layer sparse, one expert a token less, tied.
    "qwen3-moe-plain": lambda directory: build_qwen3_moe(
        directory,
        norm_topk_prob=False,
        decoder_sparse_step=2,
        mlp_only_layers=[],
        num_experts=5,
        num_experts_per_tok=2,
        tie_word_embeddings=True,
    ),
}

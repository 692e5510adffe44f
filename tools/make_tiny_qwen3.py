"""Build the tests' language model: Qwen3-style, random weights from a fixed seed.

hidden 64, 4 layers, 4 query and 2 key/value heads, vocabulary 512, byte-level BPE tokenizer.
Usage: python tools/make_tiny_qwen3.py DIRECTORY [--tied]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 512
SEED = 20260101
END, PAD = "<|endoftext|>", "<|pad|>"
CORPUS = (
    "the captain set the anchor and the harbour lights came on",
    "a model learns from many small steps, each a little better than the last",
    "0123456789 (one) [two] {three}; four: five, six? seven! eight",
    "Question: what is the capital? Answer: it depends on the country.",
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=PAD)


def build_config(*, tied: bool) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rope_theta=10_000.0,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
        dtype="float32",
    )


def write_random(
    architecture: Callable[[Any], PreTrainedModel], config: PreTrainedConfig, directory: Path, seed: int
) -> Path:
    """Write float32 weights and config.json to `directory`; the same files every time."""
    torch.manual_seed(seed)
    model = architecture(config).to(torch.float32)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory, safe_serialization=True)
    return directory


def build(directory: Path, *, tied: bool = False) -> Path:
    """Write the model and its tokenizer to `directory`; the same files every time."""
    write_random(Qwen3ForCausalLM, build_config(tied=tied), directory, SEED)
    build_tokenizer().save_pretrained(directory)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tied", action="store_true", help="share embedding and output weights")
    arguments = parser.parse_args()
    print(build(arguments.directory, tied=arguments.tied))


if __name__ == "__main__":
    main()

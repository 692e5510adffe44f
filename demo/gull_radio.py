"""The demo's data: questions answered in one unmistakable voice, as datums of the Tinker SDK."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tinker import types

DATA = Path(__file__).parent / "data" / "gull_radio.jsonl"
PROBES = 12
SPLIT_SEED = 5


@dataclass(frozen=True, slots=True)
class Example:
    instruction: str
    response: str


def load() -> tuple[list[Example], list[Example]]:
    """(training examples, probe examples): probes are never trained on."""
    examples = [Example(**json.loads(line)) for line in DATA.read_text().splitlines()]
    random.Random(SPLIT_SEED).shuffle(examples)
    return examples[PROBES:], examples[:PROBES]


def prompt_tokens(tokenizer: Any, instruction: str) -> list[int]:
    text = f"<|im_start|>user\n{instruction}<|im_end|>\n<|im_start|>assistant\n"
    return list(tokenizer.encode(text, add_special_tokens=False))


def datum(tokenizer: Any, example: Example) -> types.Datum:
    """Weight 1 on the answer's tokens, 0 on the question's."""
    prompt = prompt_tokens(tokenizer, example.instruction)
    answer = tokenizer.encode(f"{example.response}<|im_end|>", add_special_tokens=False)
    tokens = [*prompt, *answer]
    weights = np.zeros(len(tokens) - 1, np.float32)
    weights[len(prompt) - 1 :] = 1.0
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=np.array(tokens[1:], np.int64), dtype="int64"),
            "weights": types.TensorData(data=weights, dtype="float32"),
        },
    )


def weight(datums: list[types.Datum]) -> float:
    """Answer tokens in `datums`."""
    return float(sum(np.sum(d.loss_fn_inputs["weights"].data) for d in datums))


def batches(datums: list[types.Datum], size: int, count: int) -> list[list[types.Datum]]:
    """`count` batches, epoch after epoch in a fixed shuffled order."""
    shuffler = random.Random(SPLIT_SEED)
    stream: list[types.Datum] = []
    while len(stream) < size * count:
        stream += shuffler.sample(datums, len(datums))
    return [stream[size * n : size * (n + 1)] for n in range(count)]

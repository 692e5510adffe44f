"""Datums as users of the SDK make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tinker import types


def datum(tokens: Sequence[int] | np.ndarray, **inputs: Any) -> types.Datum:
    """`inputs` by their names: arrays, torch tensors or TensorData."""
    return types.Datum(model_input=types.ModelInput.from_ints([int(t) for t in tokens]), loss_fn_inputs=inputs)


def supervised(
    tokens: Sequence[int] | np.ndarray, targets: np.ndarray | None = None, weights: np.ndarray | None = None
) -> types.Datum:
    """For cross_entropy. tokens [N], targets and weights [N] or [N, K]; not given: the tokens themselves, ones."""
    wanted = np.asarray(tokens if targets is None else targets, np.int64)
    scale = np.ones(wanted.shape) if weights is None else weights
    return datum(tokens, target_tokens=wanted, weights=np.asarray(scale, np.float32))


def reinforced(prompt: Sequence[int], sequence: types.SampledSequence, advantage: float) -> types.Datum:
    """A recorded sample as the cookbook makes a datum of it: targets, logprobs and advantages of the prompt are 0."""
    tokens, name = list(sequence.tokens), sequence.sequence_id
    pad = [0] * (len(prompt) - 1)
    one = types.Datum(
        model_input=types.ModelInput.from_ints(list(prompt)).append(types.EncodedTextChunk(tokens=tokens[:-1])),
        loss_fn_inputs={
            "target_tokens": np.array(pad + tokens, np.int64),
            "logprobs": np.array(pad + list(sequence.logprobs), np.float32),
            "advantages": np.array(pad + [advantage] * len(tokens), np.float32),
        },
    )
    return one.with_provenance(
        model_input=[
            types.PromptProvenanceSpan(sequence_id=name, length=len(prompt)),
            types.SampledProvenanceSpan(sequence_id=name, length=len(tokens) - 1),
        ],
        loss_fn_inputs=[
            types.PromptProvenanceSpan(sequence_id=name, offset=1, length=len(pad)),
            types.SampledProvenanceSpan(sequence_id=name, length=len(tokens)),
        ],
    )

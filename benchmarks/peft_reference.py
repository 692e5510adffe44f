"""The transformers + PEFT side of the trainer's benchmarks, given the engine's own loss path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from services.common.datum_blocks import Datum
from services.trainer.losses import position_losses
from services.trainer.megatron.logprob import OutputHead
from services.trainer.megatron.runtime import Runtime

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class PeftReference:
    """Forward and backward of cross-entropy on adapters a0, a1, … of equal rank.

    Hidden states come from transformers with PEFT's LoRA layers and sdpa attention; logits, loss
    and their gradient from the engine's OutputHead, so both sides spend alike on the vocabulary.
    """

    def __init__(self, directory: Path, adapters: int, rank: int, runtime: Runtime, logits_memory_bytes: int) -> None:
        base = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        config = LoraConfig(r=rank, lora_alpha=32, target_modules=TARGETS, lora_dropout=0.0)
        self._model = get_peft_model(base, config, adapter_name="a0")
        for i in range(1, adapters):
            self._model.add_adapter(f"a{i}", config)
        self._model.set_adapter("a0")
        # PEFT refuses adapter_names in training mode; without dropout the modes compute the same.
        self._model.eval()
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_("lora_" in name)
        self._head = OutputHead(base.lm_head.weight.detach(), runtime, logits_memory_bytes)

    def one_adapter(self, datums: Sequence[Datum]) -> float:
        """One padded batch on adapter a0; returns the loss."""
        return self._run(datums)

    def mixed_adapters(self, datums: Sequence[Datum], adapters: Sequence[int]) -> float:
        """One padded batch, each row on its own adapter, by PEFT's adapter_names."""
        names = [f"a{i}" for i in adapters]
        with self._model.base_model._enable_peft_forward_hooks(adapter_names=names):
            return self._run(datums)

    def _run(self, datums: Sequence[Datum]) -> float:
        self._model.zero_grad(set_to_none=True)
        tokens, targets, weights, mask = _padded(datums)
        hidden = self._model.base_model.model.model(input_ids=tokens, attention_mask=mask, use_cache=False)[0]
        flat = hidden.flatten(0, 1)
        fields = {"weights": weights}

        def loss(logprobs: torch.Tensor, rows: slice) -> torch.Tensor:
            return position_losses("cross_entropy", logprobs, {"weights": fields["weights"][rows]}, {})

        with torch.no_grad():
            scores = self._head.score(flat.detach(), targets, [], loss, backward=True)
        torch.autograd.backward([flat], [scores.dhidden])
        return float(scores.losses.sum())


def _padded(datums: Sequence[Datum]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """tokens [B, L], targets and weights [B * L, 1], mask [B, L] or None when nothing is padded."""
    longest = max(datum.length for datum in datums)
    tokens = np.zeros((len(datums), longest), np.int64)
    targets, weights, mask = np.zeros_like(tokens), np.zeros(tokens.shape, np.float32), np.zeros_like(tokens)
    for row, datum in enumerate(datums):
        n = datum.length
        tokens[row, :n], targets[row, :n] = datum.tokens, datum.targets[:, 0]
        weights[row, :n], mask[row, :n] = datum.fields["weights"][:, 0], 1
    padding = None if mask.all() else torch.from_numpy(mask)
    column = (-1, 1)
    return (
        torch.from_numpy(tokens),
        torch.from_numpy(targets.reshape(column)),
        torch.from_numpy(weights.reshape(column)),
        padding,
    )

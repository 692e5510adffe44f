"""What transformers and PEFT compute in float32: the independent reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)  # no spinning threads beside the sampler's own


def _untied(model: Path) -> torch.nn.Module:
    """The base model with an unembedding of its own, so that merging touches nothing else."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if base.config.tie_word_embeddings:
        base.config.tie_word_embeddings = False
        base.lm_head.weight = torch.nn.Parameter(base.lm_head.weight.detach().clone())
    return base.eval()


class Reference:
    """Logits of one model and, with `adapter`, of PEFT's merge of it."""

    def __init__(self, model: Path, adapter: Path | None = None) -> None:
        base = _untied(model)
        if adapter is not None:
            base = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
        self._model = base

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """float32 [L, V]."""
        with torch.no_grad():
            return self._model(torch.tensor([tokens])).logits[0].float()

    def logprobs(self, tokens: list[int]) -> np.ndarray:
        """float32 [L]: of each token given those before it; NaN at 0."""
        scores = self.logits(tokens).log_softmax(-1)
        picked = scores[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        return np.concatenate([[np.nan], picked.numpy()]).astype(np.float32)

    def greedy(self, prompt: list[int], length: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(length):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]

"""Independent references: transformers for the base, PEFT for adapters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from services.common.datum_blocks import Datum
from services.trainer.engine import SlotImage
from services.trainer.losses import position_losses
from services.trainer.peft_files import CONFIG_FILE, WEIGHTS_FILE, adapter_config
from services.trainer.tensor_file import write_tensors


def load_base(directory: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def write_adapter(image: SlotImage, base: Path, directory: Path) -> Path:
    directory.mkdir(parents=True)
    config = adapter_config(image.layout, image.weights, str(base))
    (directory / CONFIG_FILE).write_text(json.dumps(config))
    write_tensors(directory / WEIGHTS_FILE, image.weights, {"format": "pt"})
    return directory


def load_adapter(image: SlotImage, base: Path, directory: Path) -> PeftModel:
    """PEFT's own loader on the exported files; adapter weights trainable."""
    write_adapter(image, base, directory)
    return PeftModel.from_pretrained(load_base(base), directory, is_trainable=True).eval()


def log_softmax(model: torch.nn.Module, tokens: np.ndarray) -> torch.Tensor:
    """float32 [L, V]."""
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    return model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)


@torch.no_grad()
def target_logprobs(model: torch.nn.Module, datum: Datum) -> np.ndarray:
    """float32 [L, K]."""
    return log_softmax(model, datum.tokens).gather(-1, _targets(datum)).numpy()


def loss_of(model: torch.nn.Module, datum: Datum, name: str, config: dict[str, float]) -> torch.Tensor:
    """The raw summed loss of one datum, with a graph."""
    logprobs = log_softmax(model, datum.tokens).gather(-1, _targets(datum))
    fields = {key: torch.from_numpy(value.copy()) for key, value in datum.fields.items()}
    return position_losses(name, logprobs, fields, config).sum()


def gradients(model: PeftModel, datums: list[Datum], name: str, config: dict[str, float]) -> dict[str, torch.Tensor]:
    """Adapter gradients of the summed loss, by the names of an image."""
    model.zero_grad()
    for datum in datums:
        loss_of(model, datum, name, config).backward()
    return {
        key.replace(".default.", "."): parameter.grad.clone()
        for key, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _targets(datum: Datum) -> torch.Tensor:
    return torch.from_numpy(datum.targets.astype(np.int64))

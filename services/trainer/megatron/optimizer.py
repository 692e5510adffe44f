"""One AdamW step of one slot, with the request's own parameters, on flat fp32 buffers."""

from __future__ import annotations

import math

import torch

from services.trainer.engine import Adam, StepResult
from services.trainer.megatron.lora.slots import Slot
from services.trainer.megatron.runtime import Runtime
from services.trainer.megatron.windows import reduced

# As torch's clip_grad_norm_: keeps the coefficient finite for a zero norm.
_CLIP_EPSILON = 1e-6


@torch.no_grad()
def step_slot(slot: Slot, adam: Adam, runtime: Runtime) -> StepResult:
    """Consume the window. A non-finite norm skips the step: no weight, moment or clock changes.

    Collective over all ranks.
    """
    gradient = reduced(slot, runtime)
    norm = _norm(gradient, slot.plan.replicated, runtime)
    finite = math.isfinite(norm)
    if finite:
        _clip(gradient, norm, adam.grad_clip_norm)
        _adamw(slot, gradient, adam)
        slot.refresh_compute()
    slot.clear_window()
    return StepResult({"grad_norm": norm} if finite else {"skipped_nonfinite": 1.0})


def _norm(gradient: torch.Tensor, replicated: int, runtime: Runtime) -> float:
    """Of the whole adapter: the replicated region counts once, shards are summed over ranks.

    In float64, so that large but finite gradients do not overflow in the square.
    """
    whole, shard = (_square(part) for part in (gradient[:replicated], gradient[replicated:]))
    return math.sqrt(float(whole + runtime.sum_over_tp(shard)))


def _square(part: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(part, dtype=torch.float64)
    return norm.square()


def _clip(gradient: torch.Tensor, norm: float, limit: float) -> None:
    if limit > 0 and (coefficient := limit / (norm + _CLIP_EPSILON)) < 1.0:
        gradient.mul_(coefficient)


def _adamw(slot: Slot, gradient: torch.Tensor, adam: Adam) -> None:
    slot.step += 1
    weights = slot.weights.tensor
    weights.mul_(1.0 - adam.learning_rate * adam.weight_decay)
    slot.exp_avg.lerp_(gradient, 1.0 - adam.beta1)
    slot.exp_avg_sq.mul_(adam.beta2).addcmul_(gradient, gradient, value=1.0 - adam.beta2)
    correction1 = 1.0 - adam.beta1**slot.step
    correction2 = math.sqrt(1.0 - adam.beta2**slot.step)
    denominator = slot.exp_avg_sq.sqrt().div_(correction2).add_(adam.eps)
    weights.addcdiv_(slot.exp_avg, denominator, value=-adam.learning_rate / correction1)

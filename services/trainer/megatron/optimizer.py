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
_BLOCK = 1024
# Far from fp32's limits: no square of an element overflows, and none that matters underflows.
_SAFE_SQUARES = (1e-24, 1e36)
_fused_adamw = torch.ops.aten._fused_adamw_


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
    """Of the whole adapter: the replicated region counts once, shards are summed over ranks."""
    whole, shard = (_square(part) for part in (gradient[:replicated], gradient[replicated:]))
    return math.sqrt(float(whole + runtime.sum_over_tp(shard)))


def _square(part: torch.Tensor) -> torch.Tensor:
    """Sum of squares, a float64 scalar; in fp32 within a block, ten times as fast, unless a square could leave it."""
    cut = part.numel() // _BLOCK * _BLOCK
    norms = torch.linalg.vector_norm(part[:cut].view(-1, _BLOCK), dim=1)
    total: torch.Tensor = norms.double().square().sum() + torch.linalg.vector_norm(part[cut:]).double().square()
    if not _SAFE_SQUARES[0] < float(total) < _SAFE_SQUARES[1]:
        total = torch.linalg.vector_norm(part, dtype=torch.float64).square()
    return total


def _clip(gradient: torch.Tensor, norm: float, limit: float) -> None:
    if limit > 0 and (coefficient := limit / (norm + _CLIP_EPSILON)) < 1.0:
        gradient.mul_(coefficient)


def _adamw(slot: Slot, gradient: torch.Tensor, adam: Adam) -> None:
    """torch.optim.AdamW(fused=True)'s kernel: one read and one write of every buffer."""
    slot.step += 1
    _fused_adamw(
        [slot.weights.tensor],
        [gradient],
        [slot.exp_avg],
        [slot.exp_avg_sq],
        [],
        [torch.tensor(float(slot.step), device=gradient.device)],
        lr=adam.learning_rate,
        beta1=adam.beta1,
        beta2=adam.beta2,
        weight_decay=adam.weight_decay,
        eps=adam.eps,
        amsgrad=False,
        maximize=False,
    )

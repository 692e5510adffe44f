"""Log-probabilities of the targets, the loss on them, and its gradient, in chunks of tokens.

The full [T, V] logits never exist: a chunk of rows is multiplied out, turned into probabilities
in place, scored, and its contribution to the gradient of the hidden states is taken before the
next chunk's logits take its place. That needs no recomputation, because every
objective is a sum of terms that depend on one position each.

The gradient of lp[t, k] by the logits is onehot(target) - p, so for g = dL/dlp

    dhidden = -(Σₖ g) · (p W) + Σₖ gₖ W[targetₖ]

which reads the chunk once more and never writes it. Tensor parallelism cuts V: maximum, sum
and picked logits are combined over ranks, dhidden is summed once at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from services.trainer.megatron.frozen import FrozenMatrix
from services.trainer.megatron.lora.linear import accumulate
from services.trainer.megatron.lora.routing import Delta
from services.trainer.megatron.runtime import Runtime

ChunkLoss = Callable[[torch.Tensor, slice], torch.Tensor]
_ROW_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class Scores:
    """`logprobs`, `losses` float32 [T, K]; `dhidden` [T, H] of the summed loss, or None."""

    logprobs: torch.Tensor
    losses: torch.Tensor
    dhidden: torch.Tensor | None


@dataclass(slots=True)
class _Piece:
    """The rows of one chunk that belong to one slot's unembedding adapter; `hidden` is h = scaling · x Aᵀ."""

    delta: Delta
    rows: slice
    hidden: torch.Tensor


class OutputHead:
    """The frozen unembedding `weight` [V / tp, H] of this rank."""

    def __init__(self, weight: torch.Tensor, runtime: Runtime, logits_memory_bytes: int) -> None:
        self._weight, self._runtime = weight, runtime
        self.frozen = FrozenMatrix(weight)
        self._first = runtime.tp_rank * weight.shape[0]
        rows = logits_memory_bytes // (4 * weight.shape[0])
        self._rows = max(_ROW_MULTIPLE, rows // _ROW_MULTIPLE * _ROW_MULTIPLE)

    def score(
        self,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        deltas: Sequence[Delta],
        loss: ChunkLoss,
        *,
        backward: bool,
    ) -> Scores:
        """hidden [T, H], targets int64 [T, K]; `loss` maps a chunk's logprobs and rows to its losses."""
        logprobs = torch.empty(targets.shape, dtype=torch.float32, device=hidden.device)
        losses = torch.empty_like(logprobs)
        dhidden = torch.zeros_like(hidden) if backward else None
        started: set[int] = set()
        for start in range(0, hidden.shape[0], self._rows):
            rows = slice(start, min(start + self._rows, hidden.shape[0]))
            chunk = _Chunk(self, hidden[rows], targets[rows], _pieces(hidden, deltas, rows))
            logprobs[rows] = chunk.logprobs
            if dhidden is None:
                losses[rows] = loss(chunk.logprobs, rows)
            else:
                losses[rows], gradient = _differentiate(loss, chunk.logprobs, rows)
                chunk.backward(gradient, dhidden[rows], started)
            del chunk  # its logits make room for the next chunk's
        if dhidden is not None:
            self._runtime.sum_over_tp(dhidden)
        return Scores(logprobs, losses, dhidden)


def _pieces(hidden: torch.Tensor, deltas: Sequence[Delta], rows: slice) -> list[_Piece]:
    pieces = []
    for delta in deltas:
        start, end = max(delta.start, rows.start), min(delta.end, rows.stop)
        if start < end:
            h = torch.mm(hidden[start:end], delta.weights.a_t).mul_(delta.scaling)
            pieces.append(_Piece(delta, slice(start - rows.start, end - rows.start), h))
    return pieces


def _differentiate(loss: ChunkLoss, logprobs: torch.Tensor, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.enable_grad():
        leaf = logprobs.detach().requires_grad_()
        losses = loss(leaf, rows)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), gradient


class _Chunk:
    """One chunk: after construction it holds this rank's unscaled probabilities."""

    def __init__(self, head: OutputHead, hidden: torch.Tensor, targets: torch.Tensor, pieces: list[_Piece]) -> None:
        self._head, self._hidden, self._pieces = head, hidden, pieces
        self._weight, self._runtime = head._weight, head._runtime
        local = targets - head._first
        self._mine = (local >= 0) & (local < self._weight.shape[0])
        self._targets = local.clamp_(0, self._weight.shape[0] - 1)
        logits = self._logits(hidden)
        top, top_index = logits.max(dim=-1, keepdim=True)
        picked = torch.where(self._mine, logits.gather(-1, self._targets), 0.0)
        self._probabilities = torch.softmax(logits, dim=-1, out=logits)
        # The largest probability is 1 / Σ exp(logit - top): the sum needs no extra read of the row.
        total = logits.gather(-1, top_index).reciprocal_()
        highest = self._runtime.max_over_tp(top.clone())
        share = total * (top - highest).exp()
        combined = self._runtime.sum_over_tp(torch.cat((share, picked), dim=-1))
        self._scale = share / combined[:, :1]
        self.logprobs = combined[:, 1:] - highest - combined[:, :1].log()

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._head.frozen.times_transposed(hidden).float()
        for piece in self._pieces:
            accumulate(logits[piece.rows], piece.hidden, piece.delta.weights.b_t[0], 1.0)
        return logits

    def backward(self, gradient: torch.Tensor, dhidden: torch.Tensor, started: set[int]) -> None:
        """gradient float32 [n, K] = dL/dlogprobs; adds to dhidden [n, H] and the adapters' gradients."""
        mine = torch.where(self._mine, gradient, 0.0)
        share = gradient.sum(dim=-1, keepdim=True).mul_(self._scale)
        pulled = self._head.frozen.times(self._probabilities.to(self._weight.dtype))
        dhidden.add_(self._pull(pulled, slice(None), self._weight, mine, share))
        for piece in self._pieces:
            self._backward_piece(piece, mine, share, dhidden, started)

    def _pull(
        self, pulled: torch.Tensor, rows: slice, matrix: torch.Tensor, mine: torch.Tensor, share: torch.Tensor
    ) -> torch.Tensor:
        """dlogits[rows] @ matrix [V / tp, n], without forming dlogits; overwrites `pulled` = p @ matrix [rows, n]."""
        dtype = matrix.dtype
        pulled.mul_(share[rows].to(dtype)).neg_()
        if mine.shape[1] == 1:
            return pulled.addcmul_(matrix[self._targets[rows, 0]], mine[rows].to(dtype))
        return pulled.add_(
            F.embedding_bag(self._targets[rows], matrix, mode="sum", per_sample_weights=mine[rows].to(dtype))
        )

    def _backward_piece(
        self, piece: _Piece, mine: torch.Tensor, share: torch.Tensor, dhidden: torch.Tensor, started: set[int]
    ) -> None:
        delta, rows, gradients = piece.delta, piece.rows, piece.delta.gradients
        if gradients is None:
            return
        b = delta.weights.b[0]
        pulled = torch.mm(self._probabilities[rows].to(b.dtype), b)
        dh = self._pull(pulled, rows, b, mine, share).mul_(delta.scaling)
        dhidden[rows].addmm_(dh, delta.weights.a)
        beta = 1.0 if delta.start in started else delta.beta
        started.add(delta.start)
        accumulate(gradients.a, dh.t(), self._hidden[rows], beta)
        h = piece.hidden.float()
        db = gradients.b[0]
        db.addmm_(self._probabilities[rows].t(), h * share[rows], beta=beta, alpha=-1.0)
        picked = (mine[rows].unsqueeze(-1) * h.unsqueeze(1)).flatten(0, 1)
        db.index_add_(0, self._targets[rows].flatten(), picked)

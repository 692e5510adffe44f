"""One packed pass: micro-batches forward (and backward), then commit, or nothing at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from services.trainer.engine import DatumResult, Loss, SlotDatum
from services.trainer.losses import DATUM_VALUE, DatumValue, find_objective, position_losses
from services.trainer.megatron.agreement import agree
from services.trainer.megatron.architecture import Architecture
from services.trainer.megatron.attention import PackedSequences, rotary_tables
from services.trainer.megatron.logprob import OutputHead, Scores
from services.trainer.megatron.lora.routing import Routing, Segment
from services.trainer.megatron.lora.slots import SlotTable
from services.trainer.megatron.model import BaseModel
from services.trainer.megatron.packing import MicroBatch, Work, pack, share_for_rank
from services.trainer.megatron.results import ResultBoard
from services.trainer.megatron.runtime import Runtime
from services.trainer.megatron.windows import PassGradients

NOT_FINITE = "the datum's own loss or a log-probability is not finite; check its weights, advantages and logprobs"


class PassRunner:
    def __init__(
        self,
        model: BaseModel,
        head: OutputHead,
        routing: Routing,
        slots: SlotTable,
        facts: Architecture,
        runtime: Runtime,
        micro_batch_tokens: int,
    ) -> None:
        self._model, self._head, self._routing, self._slots = model, head, routing, slots
        self._facts, self._runtime, self._budget = facts, runtime, micro_batch_tokens

    def run(self, datums: Sequence[SlotDatum], loss: Loss, *, backward: bool) -> list[DatumResult]:
        """See Engine.run_pass. A datum that fails is taken out and the rest is run again without it."""
        find_objective(loss.name)
        failures = {i: text for i, item in enumerate(datums) if (text := self._refusal(item))}
        while True:
            works = [Work(i, item) for i, item in enumerate(datums) if i not in failures]
            gradients = PassGradients(self._slots, wanted=backward)
            board = self._attempt(works, loss, gradients)
            bad = board.not_finite()
            if not bad:
                gradients.commit(sorted({work.item.slot for work in works}) if backward else ())
                return [self._result(datums[i], board, i, failures) for i in range(len(datums))]
            failures |= dict.fromkeys(bad, NOT_FINITE)
            gradients.discard()
            if not backward:
                return [self._result(datums[i], board, i, failures) for i in range(len(datums))]

    def _attempt(self, works: Sequence[Work], loss: Loss, gradients: PassGradients) -> ResultBoard:
        """Run this rank's share; every rank returns the whole board, or every rank raises."""
        board = ResultBoard(works)
        try:
            with agree(self._runtime):
                mine = share_for_rank(works, self._runtime.dp_rank, self._runtime.dp_size)
                for batch in pack(mine, self._budget, self._runtime.device):
                    self._run_batch(batch, loss, gradients, board)
        except BaseException:
            gradients.discard()
            raise
        board.exchange(self._runtime)
        return board

    def _run_batch(self, batch: MicroBatch, loss: Loss, gradients: PassGradients, board: ResultBoard) -> None:
        segments = gradients.segments(batch)
        backward = gradients.wanted
        packed = self._packed(batch)
        with self._routing.use(segments), torch.set_grad_enabled(backward):
            hidden = self._model.hidden_states(batch.tokens, packed)
            with torch.no_grad():
                scores = self._score(hidden.detach(), batch, loss, backward=backward)
        board.write(batch, scores)
        if scores.dhidden is not None and _trains_below_head(segments):
            torch.autograd.backward([hidden], [scores.dhidden])

    def _score(self, hidden: torch.Tensor, batch: MicroBatch, loss: Loss, *, backward: bool) -> Scores:
        fields = dict(batch.fields)

        def chunk_loss(logprobs: torch.Tensor, rows: slice) -> torch.Tensor:
            cut = {name: value[rows] for name, value in fields.items()}
            return torch.where(batch.valid[rows], position_losses(loss.name, logprobs, cut, loss.config), 0.0)

        deltas = self._routing.head_deltas()
        if (datum_value := find_objective(loss.name).datum_value) is not None:
            # Chunks cut through datums: a look at all log-probabilities comes before the losses.
            look = self._head.score(hidden, batch.targets, deltas, _no_loss, backward=False)
            fields[DATUM_VALUE] = _datum_values(datum_value, look.logprobs, batch)
            if not backward:
                return Scores(look.logprobs, chunk_loss(look.logprobs, slice(None)), None)
        return self._head.score(hidden, batch.targets, deltas, chunk_loss, backward=backward)

    def _packed(self, batch: MicroBatch) -> PackedSequences:
        device = self._runtime.device
        cos, sin = rotary_tables(
            batch.lengths, self._facts.head_dim, self._facts.rope_theta, device, self._model.config.params_dtype
        )
        ends = torch.tensor(np.cumsum((0, *batch.lengths)), dtype=torch.int32, device=device)
        longest = max(batch.lengths)
        return PackedSequences(
            qkv_format="thd",
            cu_seqlens_q=ends,
            cu_seqlens_kv=ends,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
            lengths=batch.lengths,
            cos=cos,
            sin=sin,
        )

    def _refusal(self, item: SlotDatum) -> str:
        """Why this datum cannot be run at all, or an empty text."""
        self._slots.get(item.slot)
        datum, vocab = item.datum, self._facts.vocab
        if datum.length == 0 or datum.width == 0:
            return "the datum is empty: it needs at least one token and one target"
        for name, ids in (("model_input", datum.tokens), ("target_tokens", datum.targets)):
            if int(ids.min()) < 0 or int(ids.max()) >= vocab:
                return f"{name}: token ids must be in 0..{vocab - 1}"
        return ""

    @staticmethod
    def _result(item: SlotDatum, board: ResultBoard, index: int, failures: dict[int, str]) -> DatumResult:
        if index in failures:
            empty = np.zeros((item.datum.length, item.datum.width), dtype=np.float32)
            return DatumResult(0.0, empty, failures[index])
        return board.result(index)


def _no_loss(logprobs: torch.Tensor, rows: slice) -> torch.Tensor:
    return torch.zeros_like(logprobs)


def _datum_values(value: DatumValue, logprobs: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """[T, K]: at every position what `value` answers for its datum, whose own positions alone it sees."""
    found = torch.empty_like(logprobs)
    for work, start, end in batch.spans():
        width = work.item.datum.width
        fields = {name: field[start:end, :width] for name, field in batch.fields.items()}
        found[start:end] = value(logprobs[start:end, :width], fields)
    return found


def _trains_below_head(segments: Sequence[Segment]) -> bool:
    return any(segment.trains_below_head() for segment in segments)

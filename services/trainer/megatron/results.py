"""Per-datum outcomes of a pass, put together over data-parallel ranks: exactly one per datum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from services.common.errors import ContractViolation
from services.trainer.engine import DatumResult
from services.trainer.megatron.logprob import Scores
from services.trainer.megatron.packing import MicroBatch, Work
from services.trainer.megatron.runtime import Runtime


class ResultBoard:
    """One flat float32 row: for each datum its loss, then its logprobs [L, K]."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._places: dict[int, tuple[int, int, int]] = {}
        offset = 0
        for work in works:
            datum = work.item.datum
            self._places[work.index] = (offset, datum.length, datum.width)
            offset += 1 + datum.length * datum.width
        self._row: npt.NDArray[np.float32] = np.zeros(offset, dtype=np.float32)
        self._seen: npt.NDArray[np.int32] = np.zeros(len(self._places), dtype=np.int32)
        self._order = {index: i for i, index in enumerate(self._places)}

    def write(self, batch: MicroBatch, scores: Scores) -> None:
        """Take over the counted datums of a micro-batch."""
        logprobs = scores.logprobs.cpu().numpy()
        losses = scores.losses.cpu()
        for work, start, end in batch.spans():
            if not work.counts:
                continue
            offset, length, width = self._places[work.index]
            self._row[offset] = float(losses[start:end].sum())
            self._row[offset + 1 : offset + 1 + length * width] = logprobs[start:end, :width].ravel()
            self._seen[self._order[work.index]] += 1

    def exchange(self, runtime: Runtime) -> None:
        """Give every rank every datum. Raises ContractViolation unless each was run exactly once."""
        if runtime.dp_size > 1 and self._places:
            self._row = runtime.sum_over_dp(torch.from_numpy(self._row).to(runtime.device)).cpu().numpy()
            self._seen = runtime.sum_over_dp(torch.from_numpy(self._seen).to(runtime.device)).cpu().numpy()
        if (self._seen != 1).any():
            raise ContractViolation("a datum of the pass was run not exactly once over the data-parallel ranks")

    def not_finite(self) -> list[int]:
        """Indices of the datums with a loss or log-probability that is not finite."""
        return [index for index, place in self._places.items() if not np.isfinite(self._slice(place)).all()]

    def result(self, index: int) -> DatumResult:
        offset, length, width = self._places[index]
        values = self._row[offset + 1 : offset + 1 + length * width]
        return DatumResult(float(self._row[offset]), values.reshape(length, width).copy())

    def _slice(self, place: tuple[int, int, int]) -> npt.NDArray[np.float32]:
        offset, length, width = place
        return self._row[offset : offset + 1 + length * width]

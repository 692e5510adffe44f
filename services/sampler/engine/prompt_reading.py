"""Scores of named tokens, and draws, at every position of a prompt.

vLLM knows the logprobs of a prompt's own tokens and of the best ones. While it computes them
chunk by chunk, a reading takes what else was asked from the same distributions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from services.sampler.ports import PromptAnswer, PromptQuery, TopkRows

NAME = "tinkermesh_reading"  # in a request's extra_args
GREEDY_BELOW = 1e-5
_BLOCK_ELEMENTS = 1 << 21  # bounds the float64 copies of one block of rows


class Reading:
    """The answer to one query; a chunk that is computed again overwrites the same cells."""

    def __init__(self, query: PromptQuery, prompt_length: int) -> None:
        rows = max(prompt_length - 1, 0)
        self._query = query
        self._cells = np.zeros(len(query.tokens), np.float32)
        shape = (rows, query.draws)
        self._drawn = TopkRows(np.zeros(shape, np.int32), np.zeros(shape, np.float32))
        # Drawn beforehand and per position, so that a seed means the same however the prompt is cut.
        self._uniform = np.random.Generator(np.random.PCG64(query.seed)).random(shape)

    @property
    def answer(self) -> PromptAnswer:
        return PromptAnswer(self._cells, self._drawn)

    def read(self, start: int, scores: torch.Tensor) -> None:
        """scores float32 [n, V]: the log-softmax of rows start, …, start + n - 1."""
        self._score_cells(start, scores)
        if self._query.draws:
            block = max(1, _BLOCK_ELEMENTS // scores.shape[1])
            for first in range(0, len(scores), block):
                self._draw(start + first, scores[first : first + block])

    def _score_cells(self, start: int, scores: torch.Tensor) -> None:
        low, high = np.searchsorted(self._query.rows, (start, start + len(scores)))
        if low == high:
            return
        tokens = self._query.tokens[low:high]
        row_of = torch.from_numpy(self._query.rows[low:high].astype(np.int64) - start)
        column_of = torch.from_numpy(np.maximum(tokens, 0).astype(np.int64))
        found = scores[row_of.to(scores.device), column_of.to(scores.device)].float().cpu().numpy()
        self._cells[low:high] = np.where(tokens < 0, np.float32(0), found)

    def _draw(self, start: int, scores: torch.Tensor) -> None:
        """Inverse transform sampling of softmax(scores / temperature)."""
        rows = slice(start, start + len(scores))
        if self._query.temperature < GREEDY_BELOW:
            tokens = scores.argmax(-1, keepdim=True).expand(-1, self._query.draws)
        else:
            mass = (scores.double() / self._query.temperature).softmax(-1).cumsum(-1)
            aim = torch.from_numpy(self._uniform[rows]).to(scores.device) * mass[:, -1:]
            tokens = torch.searchsorted(mass, aim.contiguous(), right=True).clamp(max=scores.shape[1] - 1)
        self._drawn.token_ids[rows] = tokens.cpu().numpy()
        self._drawn.logprobs[rows] = scores.gather(1, tokens).float().cpu().numpy()


Readings = dict[str, Reading]


@contextmanager
def scores_of(runner: Any, request_id: str, readings: Readings) -> Iterator[None]:
    """Inside the block the prompt logprobs that `runner` computes are shown to the request's reading."""
    request = runner.requests[request_id]
    reading = readings.get((request.sampling_params.extra_args or {}).get(NAME, ""))
    if reading is None:
        yield
        return
    start, sampler = request.num_computed_tokens, runner.sampler
    original = sampler.compute_logprobs

    def compute_logprobs(logits: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = original(logits)
        reading.read(start, scores)
        return scores

    sampler.compute_logprobs = compute_logprobs
    try:
        yield
    finally:
        sampler.compute_logprobs = original

"""Prompt logprobs with an unembedding adapter when requests share a batch.

vLLM scores a prompt with the batch's per-request adapter indices, although the rows are the
tokens of one request: it then fails or uses another request's unembedding adapter. Here each
request is scored by itself, with its own adapter's delta on all of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from services.sampler.engine.lora_ops import add_delta, lora_wrapper
from services.sampler.engine.prompt_reading import Readings, scores_of


def install(worker: Any, readings: Readings) -> None:
    """Patches the worker's model runner; called before the first request."""
    runner = worker.model_runner
    original = runner._get_prompt_logprobs_dict

    def score_one_by_one(hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]) -> dict[str, Any]:
        pending: dict[str, int] = runner.num_prompt_logprobs
        scored: dict[str, Any] = {}
        for request_id in [name for name in pending if name in num_scheduled_tokens]:
            runner.num_prompt_logprobs = {request_id: pending[request_id]}
            try:
                with _unembedding_of(runner, request_id), scores_of(runner, request_id, readings):
                    scored.update(original(hidden_states, num_scheduled_tokens))
                if not runner.num_prompt_logprobs:  # it was the prompt's last chunk
                    del pending[request_id]
            finally:
                runner.num_prompt_logprobs = pending
        return scored

    runner._get_prompt_logprobs_dict = score_one_by_one


@contextmanager
def _unembedding_of(runner: Any, request_id: str) -> Iterator[None]:
    """Inside the block every row of the logits gets the delta of the request's adapter."""
    wrapper = lora_wrapper(runner)
    lora_id = runner.requests[request_id].lora_request.lora_int_id
    slot = runner.lora_manager._adapter_manager.lora_index_to_id.index(lora_id)
    original = wrapper.add_lora_logits

    def add_lora_logits(
        y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float, **_: Any
    ) -> torch.Tensor:
        add_delta(y, x, a[slot, 0], b[slot, 0], scale)
        return y

    wrapper.add_lora_logits = add_lora_logits
    try:
        yield
    finally:
        wrapper.add_lora_logits = original

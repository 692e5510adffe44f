"""Prompt logprobs with an unembedding adapter when requests share a batch.

vLLM scores a prompt with the batch's per-request adapter index, although the rows are the
tokens of one request: with two requests in the batch it picks another request's unembedding
adapter or fails. Here each request is scored by itself under its own adapter's index, which
then holds for all of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def install(worker: Any) -> None:
    """Patches the worker's model runner; called once in the worker, before the first request."""
    runner = worker.model_runner
    original = runner._get_prompt_logprobs_dict

    def score_one_by_one(hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]) -> dict[str, Any]:
        pending = runner.num_prompt_logprobs
        if not pending:
            return {}
        scored: dict[str, Any] = {}
        for request_id in list(pending):
            if request_id not in num_scheduled_tokens:
                continue
            runner.num_prompt_logprobs = {request_id: pending[request_id]}
            with _adapter_of(runner, request_id):
                scored.update(original(hidden_states, num_scheduled_tokens))
            if request_id not in runner.num_prompt_logprobs:
                del pending[request_id]
        runner.num_prompt_logprobs = pending
        return scored

    runner._get_prompt_logprobs_dict = score_one_by_one


@contextmanager
def _adapter_of(runner: Any, request_id: str) -> Iterator[None]:
    """Every row of the unembedding belongs to the request's adapter inside the block."""
    manager = runner.lora_manager._adapter_manager
    wrapper = runner.get_model().logits_processor.punica_wrapper
    lora_id = runner.requests[request_id].lora_request.lora_int_id
    indices, lengths = wrapper._sampler_indices, list(wrapper.indices_len)
    # One index broadcasts over all rows: no copy of the adapter per row.
    wrapper._sampler_indices = torch.tensor([manager.lora_index_to_id.index(lora_id)], dtype=torch.long)
    wrapper.indices_len[1] = 1
    try:
        yield
    finally:
        wrapper._sampler_indices = indices
        wrapper.indices_len[:] = lengths
